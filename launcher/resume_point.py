"""What the ranks of this node resume from, as the leader has published it with the world. Pure."""

from __future__ import annotations

from ftlaunch.rendezvous.interface import World


def resume_path(world: World | None) -> str | None:
    """The path on this node, ``None`` for a fresh start. With node-local storage each node has one of its own."""
    if world is None:
        return None
    paths = world.shared.get("resume_paths")
    mine = isinstance(paths, list | tuple) and world.group_rank < len(paths) and paths[world.group_rank]
    return str(mine or world.shared.get("resume_from") or "") or None
