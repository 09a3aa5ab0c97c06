"""One choice for all nodes."""

from __future__ import annotations

from collections.abc import Sequence

from ftlaunch.launcher.checkpoints.choose import choose
from ftlaunch.launcher.checkpoints.model import Candidate, Skipped, View


def view(*steps: int | None, root: str = "/ckpt", **more: object) -> View:
    found = tuple(Candidate(f"{root}/step_{step}", step, "dcp", 1) for step in steps)
    return View(root, found, **more)  # type: ignore[arg-type]


def local(*sets: Sequence[int | None]) -> list[View]:
    return [view(*steps, root=f"/local{node}") for node, steps in enumerate(sets)]


def test_one_node_takes_its_newest() -> None:
    choice = choose([view(7, 6)], shared_storage=True)
    assert (choice.path, choice.step, choice.certain) == ("/ckpt/step_7", 7, True)
    assert choice.reason == "/ckpt/step_7 (step 7), the newest complete checkpoint"


def test_node_local_takes_the_greatest_step_that_all_have() -> None:
    choice = choose(local([6, 5], [7, 6, 5]), shared_storage=False)
    assert choice.step == 6
    assert choice.paths == ("/local0/step_6", "/local1/step_6")
    assert choice.reason == "step 6, the newest that all 2 nodes have complete; the newest anywhere is step 7"


def test_node_local_counts_by_step_whatever_the_order_of_the_views() -> None:
    for sets in ([6, 5], [7, 6, 5], [9, 6]), ([9, 6], [6, 5], [7, 6, 5]):
        assert choose(local(*sets), shared_storage=False).step == 6


def test_node_local_without_a_common_step_is_a_fresh_start() -> None:
    choice = choose(local([5], [7]), shared_storage=False)
    assert (choice.path, choice.step, choice.paths) == (None, None, (None, None))
    assert "no step is complete on all" in choice.reason
    assert "1 of 2 nodes have none" in choose(local([5], []), shared_storage=False).reason


def test_node_local_ignores_what_has_no_step() -> None:
    assert choose(local([None, 4], [None, 4]), shared_storage=False).step == 4
    assert choose(local([None], [None]), shared_storage=False).path is None
    assert choose(local([None]), shared_storage=False).path == "/local0/step_None"


def test_shared_storage_takes_what_all_see() -> None:
    choice = choose([view(7, 6), view(6)], shared_storage=True)
    assert choice.step == 6
    assert choice.reason.endswith("the newest that all 2 nodes see complete")


def test_shared_storage_does_without_nodes_that_cannot_look() -> None:
    choice = choose([view(error="took too long"), view(7, 6), view(missing=True)], shared_storage=True)
    assert (choice.step, choice.certain) == (7, True)
    assert choice.paths == ("/ckpt/step_7",) * 3
    assert "one node could not look: took too long" in choice.reason


def test_fresh_start_is_certain_only_when_all_could_look() -> None:
    assert choose([view(missing=True), view(missing=True)], True).certain
    assert choose([view(missing=True)], True).reason == "no checkpoint directory yet: a fresh start"
    assert not choose([view(error="hangs"), view()], True).certain
    assert not choose([view(error="hangs")], True).certain
    assert not choose([*local([3]), view(error="hangs")], False).certain


def test_what_was_found_before_the_deadline_still_counts() -> None:
    choice = choose([view(9, error="took too long")], shared_storage=True)
    assert (choice.step, choice.certain) == (9, False)


def test_poisoned_one_is_passed_over_and_said() -> None:
    choice = choose([view(7, 6)], True, poisoned={"/ckpt/step_7"})
    assert choice.step == 6
    assert choice.reason.endswith("the one before a checkpoint that a generation died of")
    assert choose(local([7, 6], [7, 6]), False, poisoned={"/local0/step_7"}).step == 6


def test_nothing_before_the_poisoned_one_is_not_taken_for_a_fresh_start() -> None:
    choice = choose([view(7)], True, poisoned={"/ckpt/step_7"})
    assert (choice.path, choice.certain) == (None, False)
    assert "/ckpt/step_7" in choice.reason


def test_skipped_ones_are_counted_in_the_reason() -> None:
    choice = choose([view(skipped=(Skipped("/ckpt/step_1", "empty"),))], True)
    assert choice.reason == "no complete checkpoint (1 entry skipped): a fresh start"


def test_no_view_at_all() -> None:
    assert choose([], True).path is None
    assert choose([], False).path is None
