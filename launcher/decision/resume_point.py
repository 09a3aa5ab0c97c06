"""What the ranks of this node resume from, as the leader has published it with the world. Pure.

What a leader publishes comes from another process: what makes no sense counts as not published.
"""

from __future__ import annotations

from ftlaunch.rendezvous.interface import World


def resume_path(world: World | None) -> str | None:
    """The path on this node, ``None`` for a fresh start. With node-local storage each node has one of its own."""
    if world is None:
        return None
    paths = world.shared.get("resume_paths")
    mine = isinstance(paths, list | tuple) and world.group_rank < len(paths) and paths[world.group_rank]
    return str(mine or world.shared.get("resume_from") or "") or None


def resume_step(world: World | None) -> int | None:
    """The step that its checkpoint was saved at, where that is known."""
    step = world.shared.get("resume_step") if world is not None else None
    return step if type(step) is int else None
