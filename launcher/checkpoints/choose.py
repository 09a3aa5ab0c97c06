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
    if shared_storage or len(views) == 1:
        return _choose_shared(views, poisoned)
    return _choose_local(views, poisoned)


def _choose_shared(views: Sequence[View], poisoned: Container[str]) -> Choice:
    seeing = [view for view in views if view.error is None and not view.missing]
    blind = [view for view in views if view.error is not None or view.missing]
    seeing = seeing or [view for view in blind if view.complete]
    common = set.intersection(*({found.path for found in view.complete} for view in seeing)) if seeing else set()
    certain = all(view.error is None for view in views) or any(v.complete for v in views if v.error is None)
    for found in seeing[0].complete if seeing else ():
        if found.path in common and found.path not in poisoned:
            reason = f"{_describe(found)}, {_standing(seeing, found.path, poisoned)}{_blind_note(blind)}"
            return Choice(found.path, found.step, reason, (found.path,) * len(views), certain)
    return _none(views, poisoned, certain)


def _choose_local(views: Sequence[View], poisoned: Container[str]) -> Choice:
    usable = [_by_step(view, poisoned) for view in views]
    certain = all(view.error is None for view in views)
    common = set.intersection(*(set(steps) for steps in usable)) if usable else set()
    if not common:
        empty = sum(not steps for steps in usable)
        why = f"{empty} of {len(views)} nodes have none" if empty else "no step is complete on all nodes"
        return _none(views, poisoned, certain, f"; {why}" if any(usable) else "")
    step = max(common)
    newest = max(max(steps) for steps in usable)
    behind = f"; the newest anywhere is step {newest}" if newest > step else ""
    reason = f"step {step}, the newest that all {len(views)} nodes have complete{behind}"
    paths = tuple(steps[step] for steps in usable)
    return Choice(paths[0], step, reason, paths, certain)


def _by_step(view: View, poisoned: Container[str]) -> dict[int, str]:
    steps: dict[int, str] = {}
    for found in view.complete:
        if found.step is not None and found.path not in poisoned:
            steps.setdefault(found.step, found.path)
    return steps


def _none(views: Sequence[View], poisoned: Container[str], certain: bool, note: str = "") -> Choice:
    """Nothing to resume from. If that is so only because of a poisoned one, starting afresh is not for us to decide."""
    bad = next((found for view in views for found in view.complete if found.path in poisoned), None)
    if bad is not None:
        reason = f"no complete checkpoint but {_describe(bad)}, which a generation died of"
    elif views and all(view.missing for view in views):
        reason = "no checkpoint directory yet: a fresh start"
    else:
        skipped = len({one.path for view in views for one in view.skipped})
        named = f" ({skipped} {'entry' if skipped == 1 else 'entries'} skipped)" if skipped else ""
        reason = f"no complete checkpoint{named}: a fresh start"
    errors = _blind_note([view for view in views if view.error is not None])
    return Choice(None, None, reason + note + errors, (None,) * len(views), certain and bad is None)


def _describe(found: Candidate) -> str:
    return show(found.path) if found.step is None else f"{show(found.path)} (step {found.step})"


def _standing(seeing: Sequence[View], path: str, poisoned: Container[str]) -> str:
    newer = {view.complete[0].path for view in seeing if view.complete} - {path}
    if any(one in poisoned for one in newer):
        return "the one before a checkpoint that a generation died of"
    if newer:
        return f"the newest that all {len(seeing)} nodes see complete"
    return "the newest complete checkpoint"


def _blind_note(blind: Sequence[View]) -> str:
    errors = [view.error for view in blind if view.error is not None]
    if errors:
        who = "one node" if len(errors) == 1 else f"{len(errors)} nodes"
        return f"; {who} could not look: {errors[0]}"
    return f"; {len(blind)} nodes do not have the directory" if blind else ""
