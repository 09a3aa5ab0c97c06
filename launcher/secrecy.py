"""Keeping secrets out of what is written down or shown: by the name of an option, and by their form in any text. Pure.

What cannot be known from its name or form cannot be hidden.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"
_SECRET_WORDS = frozenset(
    ("key", "apikey", "token", "secret", "password", "passwd", "passphrase", "credential", "credentials", "auth")
)
_PLACE_WORDS = frozenset(("file", "path", "dir"))
_USER_IN_URL = re.compile(r"(?<=://)[^/\s]+(?=@)")
_USER_AT_HOST = re.compile(r"(?<![\w/])[\w.+-]+:[^\s/,]+(?=@)")
_AUTHORIZATION = re.compile(r"(?i)\b(bearer|basic) +[^\s'\"]+")
_ASSIGNMENT = re.compile(r"([A-Za-z0-9_.-]+)=([^\s,'\"]+)")


def redact(arguments: Sequence[str]) -> list[str]:
    """Arguments fit for a record: the values of options that look like secrets, and passwords in URLs, are hidden."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if hide_next and not argument.startswith("-"):
            shown.append(HIDDEN)
        elif equals and is_secret(name):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(hide(argument))
        hide_next = argument.startswith("-") and not equals and is_secret(name)
    return shown


def hide(text: str) -> str:
    """Any text, without ``user:password@``, ``Bearer …``, and values assigned to what looks like a secret."""
    if "://" in text:
        text = _USER_IN_URL.sub(HIDDEN, text)
    if "@" in text:
        text = _USER_AT_HOST.sub(HIDDEN, text)
    text = _AUTHORIZATION.sub(rf"\1 {HIDDEN}", text)
    return _ASSIGNMENT.sub(lambda found: f"{found[1]}={HIDDEN}" if is_secret(found[1]) else found[0], text)


def is_secret(name: str) -> bool:
    """By whole words, so that ``--tokenizer`` and ``--max-tokens`` stay readable; the name of a file is no secret."""
    words = set(re.split("[^a-z0-9]+", name.lower()))
    return not words.isdisjoint(_SECRET_WORDS) and words.isdisjoint(_PLACE_WORDS)
