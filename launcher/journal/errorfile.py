"""torch's error files (``TORCHELASTIC_ERROR_FILE``): reading what a rank's ``@record`` wrote, writing our own copy.

Shape, as torch 2.13 writes it: ``{"message": {"message": str, "extraInfo": {"py_callstack": str, "timestamp": str}}}``;
the launcher's copy has ``message.errorCode`` too. Older ones have a plain string as ``message``.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ftlaunch.launcher.journal.incident import FailureCause

_LIMIT = 1 << 20
_SHOWN = 2000


@dataclass(frozen=True)
class ErrorFile:
    """What a rank wrote about its end. ``raw`` is the whole of it when it could be parsed."""

    path: str
    message: str
    traceback: str = ""
    raw: Mapping[str, Any] | None = None


def read_error_file(path: Path | None) -> ErrorFile | None:
    """Read at most 1 MiB; ``None`` when there is nothing. What cannot be parsed is shown as the text it is."""
    data = _read_regular(path)
    if path is None or not data.strip():
        return None
    text = data.decode("utf-8", "replace")
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return ErrorFile(str(path), f"(not valid JSON) {text[:_SHOWN]}")
    if not isinstance(raw, dict):
        return ErrorFile(str(path), text[:_SHOWN])
    message = raw.get("message", "")
    if not isinstance(message, dict):
        return ErrorFile(str(path), str(message)[:_SHOWN], raw=raw)
    extra = message.get("extraInfo")
    callstack = extra.get("py_callstack", "") if isinstance(extra, dict) else ""
    return ErrorFile(str(path), str(message.get("message", "")), str(callstack or ""), raw)


def write_parent_error_file(path: str, cause: FailureCause, own: ErrorFile | None, wall: str) -> str:
    """Write the root cause where our own parent looks for it. Returns one line when that failed, else ``""``.

    ``wall`` is the wall time of the failure in ISO 8601, for files that have to be made up.
    """
    shape = parent_shape(cause, own, wall)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(shape, file)
        os.replace(temporary, path)
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError, ValueError):
            os.unlink(temporary)
        return f"cannot write TORCHELASTIC_ERROR_FILE {path}: {getattr(error, 'strerror', None) or error}"
    return ""


def parent_shape(cause: FailureCause, own: ErrorFile | None, wall: str) -> dict[str, Any]:
    """The rank's own file when there is one, else one made of what is known, with the exit code added."""
    raw = own.raw if own is not None else None
    code = cause.exit_code or 0
    if raw is not None and isinstance(raw.get("message"), dict):
        return {**raw, "message": {**raw["message"], "errorCode": code}}
    said = str(raw["message"]) if raw is not None and raw.get("message") else ""
    text = f"{cause.exception}: {cause.message}" if cause.exception else said or cause.reason
    timestamp = str(int(datetime.fromisoformat(wall).timestamp())) if wall else "0"
    extra = {"py_callstack": cause.traceback, "timestamp": timestamp}
    return {"message": {"message": text, "extraInfo": extra, "errorCode": code}}


def _read_regular(path: Path | None) -> bytes:
    """The first bytes of a regular file. Whatever else a script put there (a FIFO, a directory) is not waited for."""
    if path is None:
        return b""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return b""
        with open(fd, "rb", closefd=False) as file:
            return file.read(_LIMIT)
    except OSError:
        return b""
    finally:
        os.close(fd)
