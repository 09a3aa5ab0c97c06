"""Asks file systems for their free space. Run by path with ``python -I -S``; standard library only.

A stat(2) on a dead network mount sleeps uninterruptibly, so this is a process of its own and asks each path in a
thread of its own: the answers of the living come out at once, one line of JSON each.
"""

from __future__ import annotations

import json
import os
import sys
import threading


def ask(path: str) -> dict[str, object]:
    """Free space where ``path`` is, or where it would be created."""
    place = os.path.abspath(path)
    while True:
        try:
            facts = os.statvfs(place)
        except OSError as error:
            parent = os.path.dirname(place)
            if isinstance(error, (FileNotFoundError, NotADirectoryError)) and parent != place:
                place = parent
                continue
            return {"path": path, "error": error.strerror or str(error)}
        return {
            "path": path,
            "free": facts.f_bavail * facts.f_frsize,
            "total": facts.f_blocks * facts.f_frsize,
            "files_left": facts.f_favail if facts.f_files else None,
            "read_only": bool(facts.f_flag & os.ST_RDONLY),
        }


def main(paths: list[str]) -> None:
    """Print one answer for each path, as it comes."""

    def tell(path: str) -> None:
        line = json.dumps(ask(path)) + "\n"
        os.write(1, line.encode())

    threads = [threading.Thread(target=tell, args=(path,), daemon=True) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
