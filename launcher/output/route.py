"""Which stream of which rank goes where. Pure."""

from __future__ import annotations

import re

from ftlaunch.launcher.config import LogConfig, Stream

_FIELD = re.compile(r"\$\{(\w+)\}|\$(\w+)|\$(\$)")


def shows_on_console(config: LogConfig, local_rank: int, stream: Stream) -> bool:
    """Redirected output goes to its file only; what is tee'd, or not mentioned at all, goes to the console too."""
    if config.local_ranks_filter and local_rank not in config.local_ranks_filter:
        return False
    if config.tees.get(local_rank, config.tees.get(None, Stream.NONE)) & stream:
        return True
    return not config.redirects.get(local_rank, config.redirects.get(None, Stream.NONE)) & stream


def line_prefix(template: str | None, role: str, rank: int, local_rank: int) -> bytes:
    """What stands before each line: ``[default0]:``, or the template filled in; unknown fields stay as they are."""
    if template is None:
        return f"[{role}{local_rank}]:".encode("utf-8", "surrogateescape")
    values = {"role_name": role, "rank": str(rank), "local_rank": str(local_rank)}

    def fill(match: re.Match[str]) -> str:
        return "$" if match[3] else values.get(match[1] or match[2], match[0])

    return _FIELD.sub(fill, template).encode("utf-8", "surrogateescape")


def matching(pieces: list[bytes], patterns: tuple[bytes, ...]) -> list[bytes]:
    """The pieces that contain any of the patterns."""
    return [piece for piece in pieces if any(pattern in piece for pattern in patterns)]
