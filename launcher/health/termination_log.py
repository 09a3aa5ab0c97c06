"""Why the container ended, where Kubernetes looks for it (Kubernetes documentation, terminationMessagePath)."""

from __future__ import annotations

import os

KUBERNETES_PATH = "/dev/termination-log"
MAX_BYTES = 4096
"""What Kubernetes keeps of it."""


def choose_path(configured: str | None, kubernetes_path: str = KUBERNETES_PATH) -> str:
    """Where to write: as configured, else Kubernetes' own file where it exists, else nowhere (empty)."""
    if configured is not None:
        return configured
    return kubernetes_path if os.path.exists(kubernetes_path) else ""


def write_termination_log(path: str, text: str) -> str:
    """Replace what the file holds, cut to what Kubernetes keeps. Returns a note for the user, empty when it worked.

    The file is written in place: Kubernetes mounts it alone, so it can't be renamed over.
    """
    if not path:
        return ""
    try:
        with open(path, "wb") as log:
            log.write(cut(text))
    except OSError as error:
        return f"the reason could not be written to {path}: {error.strerror or error}"
    return ""


def cut(text: str, limit: int = MAX_BYTES) -> bytes:
    """At most ``limit`` bytes of UTF-8, no character cut in two. The beginning stays: it names the cause."""
    return text.encode(errors="replace")[:limit].decode(errors="ignore").encode()
