"""From the text of an option or environment variable to its value.

Every parser takes the text and raises :class:`ValueError` with a phrase that completes ``<option> ...``: "must be a
whole number of at least 0". The caller adds which option it was and what was found.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

from ftlaunch.launcher.config import RestartBudget, Stream
from ftlaunch.launcher.secrecy import hide

_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|m|h|d)?", re.ASCII)
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S = 10 * 365 * 86400.0
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_HOST = re.compile(r"[\w.:%-]+")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_LEVELS = {"CRITICAL": 50, "ERROR": 40, "WARNING": 30, "INFO": 20, "DEBUG": 10}
_LEVEL_ALIASES = {"WARN": "WARNING", "FATAL": "CRITICAL", "NOTSET": "DEBUG"}

# SIGKILL and SIGSTOP cannot be handled (signal(7)), the agent needs SIGCHLD itself, the others mean a crash.
_NOT_HANDLED = frozenset({"SIGKILL", "SIGSTOP", "SIGCHLD", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"})


def show(text: str, limit: int = 80) -> str:
    """Quote foreign text for a message: one line whatever it holds, never longer than a line, without secrets."""
    text = hide(text)
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


def text(value: str) -> str:
    """Anything, as it is."""
    return value


def one_line(value: str) -> str:
    """Anything that is not empty and holds no control characters: names that end up in prefixes and paths."""
    if not value or any(ord(character) < 32 for character in value):
        raise ValueError("must be a name without control characters")
    return value


def boolean(value: str) -> bool:
    """0/1, true/false, yes/no, on/off, in any case."""
    lowered = value.strip().lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    if re.fullmatch(r"[+-]?\d{1,9}", lowered, re.ASCII):
        return int(lowered) != 0
    raise ValueError("must be 1/true or 0/false")


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number within bounds, both included."""
    expected = f"of at least {least}" if most is None else f"from {least} to {most}"

    def parse(value: str) -> int:
        stripped = value.strip()
        if not re.fullmatch(r"[+-]?\d{1,18}", stripped, re.ASCII):
            raise ValueError(f"must be a whole number {expected}")
        number = int(stripped)
        if number < least or (most is not None and number > most):
            raise ValueError(f"must be a whole number {expected}")
        return number

    return parse


def number(above: float) -> Callable[[str], float]:
    """A plain decimal number greater than or equal to ``above``."""

    def parse(value: str) -> float:
        stripped = value.strip()
        if not re.fullmatch(r"\d{1,12}(\.\d*)?|\.\d+", stripped, re.ASCII) or float(stripped) < above:
            raise ValueError(f"must be a number of at least {above:g}")
        return float(stripped)

    return parse


def duration(value: str) -> float:
    """Seconds, or a number with a unit: ``500ms``, ``10s``, ``5m``, ``1h``, ``2d``. Returns seconds."""
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError("must be seconds or a number with a unit, such as 30, 500ms, 10s, 5m or 1h")
    seconds = float(match.group(1)) * _UNIT_S[match.group(2) or "s"]
    if seconds > _LONGEST_S:
        raise ValueError("must be at most ten years")
    return seconds


def positive_duration(value: str) -> float:
    """As :func:`duration`, but not zero."""
    seconds = duration(value)
    if seconds <= 0:
        raise ValueError("must be more than zero seconds")
    return seconds


def choice(*allowed: str) -> Callable[[str], str]:
    """One of a few words."""

    def parse(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return value

    return parse


def on_off(value: str) -> bool:
    """``on`` or ``off``, and what :func:`boolean` knows."""
    try:
        return boolean(value)
    except ValueError:
        raise ValueError("must be on or off") from None


def nodes(value: str) -> tuple[int, int]:
    """``N`` or ``MIN:MAX``, both at least 1."""
    expected = "must be N or MIN:MAX with 1 <= MIN <= MAX, such as 2 or 2:4"
    if not re.fullmatch(r"\s*\d{1,6}\s*(:\s*\d{1,6}\s*)?", value, re.ASCII):
        raise ValueError(expected)
    low, _, high = value.partition(":")
    least, most = int(low), int(high or low)
    if not 0 < least <= most:
        raise ValueError(expected)
    return least, most


def processes(value: str) -> int | str:
    """A number of ranks, or the word for what to count."""
    stripped = value.strip()
    if stripped in {"auto", "cpu", "gpu", "xpu"}:
        return stripped
    try:
        return whole(1)(stripped)
    except ValueError:
        raise ValueError("must be a number of at least 1, or auto, gpu, cpu or xpu") from None


def restart_budget(value: str) -> RestartBudget:
    """``N/DURATION``: ``5/1h`` allows five restarts within any hour."""
    count, slash, window = value.partition("/")
    try:
        if not slash:
            raise ValueError(value)
        return RestartBudget(whole(1)(count.strip()), positive_duration(window))
    except ValueError:
        raise ValueError("must be a number of restarts and a time, such as 5/1h") from None


def exit_codes(value: str) -> frozenset[int]:
    """Exit codes from 1 to 255 with commas between."""
    try:
        return frozenset(whole(1, 255)(word) for word in words(value))
    except ValueError:
        raise ValueError("must be exit codes from 1 to 255 with commas between") from None


def size(value: str) -> int:
    """Bytes, or a number with a binary unit: ``64K``, ``500M``, ``1G``. Returns bytes."""
    match = re.fullmatch(r"(\d{1,15})([KMGT]?)(?:iB|B)?", value.strip(), re.ASCII | re.IGNORECASE)
    if match is None or int(match.group(1)) == 0:
        raise ValueError("must be a number of bytes, or one with a unit, such as 500M or 1G")
    return int(match.group(1)) << 10 * " KMGT".index(match.group(2).upper() or " ")


def threads(value: str) -> int | str:
    """A number of threads, or ``auto``."""
    if value.strip() == "auto":
        return "auto"
    try:
        return whole(1)(value)
    except ValueError:
        raise ValueError("must be a number of at least 1, or auto") from None


def streams(value: str) -> dict[int | None, Stream]:
    """torchrun's ``3`` for all ranks, or ``0:1,1:2`` by local rank. A map leaves unnamed ranks alone."""
    compact = value.replace(" ", "")
    if re.fullmatch(r"[0-3]", compact):
        return {None: Stream(int(compact))}
    if not re.fullmatch(r"\d{1,6}:[0-3](,\d{1,6}:[0-3])*", compact, re.ASCII):
        raise ValueError("must be 0 (none), 1 (stdout), 2 (stderr), 3 (both), or a map by local rank such as 0:3,1:1")
    pairs = (part.split(":") for part in compact.split(","))
    return {int(rank): Stream(int(which)) for rank, which in pairs}


def ranks(value: str) -> frozenset[int]:
    """Local ranks: ``0,2``."""
    compact = value.replace(" ", "")
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", compact, re.ASCII):
        raise ValueError("must be local ranks with commas between, such as 0,2")
    return frozenset(int(rank) for rank in compact.split(","))


def filters(value: str) -> tuple[str, ...]:
    """Substrings with commas between; ``,,`` is a literal comma. Empty ones, which would match every line, go."""
    return tuple(part.replace("\0", ",") for part in value.replace(",,", "\0").split(",") if part)


def words(value: str) -> tuple[str, ...]:
    """Words with commas between."""
    return tuple(part.strip() for part in value.split(",") if part.strip())


def modules(value: str) -> tuple[str, ...]:
    """Module names with commas between."""
    names = words(value)
    for name in names:
        if not _MODULE.fullmatch(name):
            raise ValueError("must be module names with commas between, such as torch,transformers")
    return names


def section_timeouts(value: str) -> tuple[tuple[str, float], ...]:
    """``NAME=DURATION``, several with commas between."""
    pairs = []
    for part in words(value):
        name, _, limit = (piece.strip() for piece in part.partition("="))
        if not name or not limit:
            raise ValueError("must be NAME=DURATION, such as checkpoint=10m")
        pairs.append((name, positive_duration(limit)))
    return tuple(pairs)


def signals(value: str) -> tuple[int, ...]:
    """Signal names with commas between, with or without ``SIG``."""
    numbers: list[int] = []
    for word in words(value):
        name = word.upper() if word.upper().startswith("SIG") else f"SIG{word.upper()}"
        if name in _NOT_HANDLED:
            raise ValueError(f"must name signals that can be forwarded, which {name} cannot")
        if name not in signal.Signals.__members__:
            raise ValueError("must be signal names with commas between, such as SIGTERM,SIGINT,SIGUSR1")
        if (found := int(signal.Signals[name])) not in numbers:
            numbers.append(found)
    if not numbers:
        raise ValueError("must name at least one signal, such as SIGTERM")
    return tuple(numbers)


def rendezvous_settings(value: str) -> dict[str, str]:
    """``k=v,k=v``; the last one of the same key counts."""
    settings: dict[str, str] = {}
    for part in value.split(",") if value.strip() else ():
        key, _, setting = (piece.strip() for piece in part.partition("="))
        if not key or not setting:
            raise ValueError("must be KEY=VALUE,KEY=VALUE, such as timeout=900,join_timeout=600")
        settings[key] = setting
    return settings


def host_and_port(endpoint: str) -> tuple[str, int | None]:
    """Split ``host``, ``host:port``, ``[v6]:port`` or a bare IPv6 address; brackets go."""
    expected = "must be HOST or HOST:PORT with a port from 0 to 65535, an IPv6 address in brackets"
    match = re.fullmatch(r"\[([^\]]*)\](?::(\d{1,5}))?", endpoint.strip(), re.ASCII)
    if match is None and endpoint.count(":") > 1:
        host, port = endpoint.strip(), None
    elif match is None:
        host, colon, port = endpoint.strip().partition(":")
        if colon and not re.fullmatch(r"\d{1,5}", port, re.ASCII):
            raise ValueError(expected)
    else:
        host, port = match.group(1), match.group(2)
    if not _HOST.fullmatch(host) or (port and int(port) > 65535):
        raise ValueError(expected)
    return host, int(port) if port else None


def endpoints(value: str) -> str:
    """``HOST[:PORT]``, several with commas between (etcd), each with an optional ``http://`` or ``https://``."""
    for part in words(value):
        if "@" in part:
            raise ValueError("must hold no user and no password, which everybody on this machine could read")
        host_and_port(re.sub(r"^https?://", "", part))
    return value.strip()


def address(value: str) -> str:
    """A host name or an IP address without a port; the brackets of an IPv6 address go."""
    host = value.strip()
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if host and not _HOST.fullmatch(host):
        raise ValueError("must be a host name or an IP address")
    return host


def log_level(value: str) -> str:
    """A level of :mod:`logging` by name in any case, or by number (the next level below it)."""
    name = value.strip().upper()
    name = _LEVEL_ALIASES.get(name, name)
    if re.fullmatch(r"\d{1,3}", name, re.ASCII):
        return next((level for level, least in _LEVELS.items() if int(name) >= least), "DEBUG")
    if name not in _LEVELS:
        raise ValueError("must be DEBUG, INFO, WARNING, ERROR or CRITICAL")
    return name
