"""Choose what the next generation resumes from. Pure: the views of all nodes in, one choice out."""

from __future__ import annotations

from collections.abc import Container, Sequence

from ftlaunch.launcher.checkpoints.model import Candidate, Choice, View, show


def choose(views: Sequence[View], shared_storage: bool, poisoned: Container[str] = ()) -> Choice:
    """The newest checkpoint that every node has complete and that is not poisoned.

    With shared storage nodes that could not look are left out of account: the others saw the same files. With
    node-local storage a checkpoint is known by its step, paths may differ, one without a step can't be compared and
    counts only on a single node, and a node that could not look makes the choice uncertain.
    """
    if shared_storage:
        return _choose_shared(views, poisoned)
    return _choose_local(views, poisoned)


def _choose_shared(views: Sequence[View], poisoned: Container[str]) -> Choice:
    blind = [view for view in views if view.error is not None or view.missing]
    seeing = [view for view in views if view not in blind] or [view for view in blind if view.complete]
    certain = all(view.error is None for view in views) or any(view.complete and view.error is None for view in views)
    note = _blind_note(blind) if seeing or not certain else ""
    common = set.intersection(*({found.path for found in view.complete} for view in seeing)) if seeing else set()
    for found in seeing[0].complete if seeing else ():
        if found.path in common and found.path not in poisoned:
            reason = f"{_describe(found)}, {_rank_text(seeing, found.path, poisoned)}{note}"
            return Choice(found.path, found.step, reason, (found.path,) * len(views), certain)
    return Choice(None, None, _none_reason(views, poisoned) + note, (None,) * len(views), certain)


def _choose_local(views: Sequence[View], poisoned: Container[str]) -> Choice:
    if len(views) == 1:
        return _choose_shared(views, poisoned)
    certain = all(view.error is None for view in views)
    usable = [_by_step(view, poisoned) for view in views]
    common = set.intersection(*(set(steps) for steps in usable)) if usable else set()
    if not common:
        empty = [show(view.directory) for view, steps in zip(views, usable, strict=True) if not steps]
        why = f"; {len(empty)} of {len(views)} nodes have none" if empty else "; no step is complete on all of them"
        return Choice(None, None, _none_reason(views, poisoned) + why, (None,) * len(views), certain)
    step = max(common)
    newest = max(max(steps) for steps in usable)
    behind = f"; the newest anywhere is step {newest}" if newest > step else ""
    paths = tuple(steps[step] for steps in usable)
    return Choice(
        paths[0], step, f"step {step}, the newest that all {len(views)} nodes have complete{behind}", paths, certain
    )


def _by_step(view: View, poisoned: Container[str]) -> dict[int, str]:
    steps: dict[int, str] = {}
    for found in view.complete:
        if found.step is not None and found.path not in poisoned:
            steps.setdefault(found.step, found.path)
    return steps


def _describe(found: Candidate) -> str:
    return show(found.path) if found.step is None else f"{show(found.path)} (step {found.step})"


def _rank_text(seeing: Sequence[View], path: str, poisoned: Container[str]) -> str:
    paths = [found.path for view in seeing for found in view.complete[:1]]
    newer = [one for one in dict.fromkeys(paths) if one != path]
    if any(one in poisoned for one in newer):
        return "the one before a checkpoint that a generation died of"
    if newer:
        return f"the newest that all {len(seeing)} nodes see complete"
    return "the newest complete checkpoint"


def _none_reason(views: Sequence[View], poisoned: Container[str]) -> str:
    known = [found for view in views for found in view.complete]
    if known and all(found.path in poisoned for found in known):
        return "no complete checkpoint that no generation died of: a fresh start"
    if all(view.missing for view in views):
        return "no checkpoint directory yet: a fresh start"
    skipped = {one.path for view in views for one in view.skipped}
    return f"no complete checkpoint ({len(skipped)} entries skipped): a fresh start"


def _blind_note(blind: Sequence[View]) -> str:
    errors = [view.error for view in blind if view.error is not None]
    if errors:
        return (
            f"; {len(errors)} nodes could not look: {errors[0]}"
            if len(errors) > 1
            else f"; one node could not look: {errors[0]}"
        )
    return f"; {len(blind)} nodes do not have the directory" if blind else ""
