"""Steps: what the ranks wrote down tells whether one was lost or made twice."""

from __future__ import annotations

import pytest

from ftlaunch.launcher.drill.steps import Entry, account, parse_ledger


def lives(*steps: range | list[int]) -> list[Entry]:
    """One life after the other, with these steps."""
    return [
        Entry(100 + number, number, count, step)
        for number, life in enumerate(steps)
        for count, step in enumerate(life, start=1)
    ]


def test_steps_since_the_checkpoint_are_repeated_and_nothing_else() -> None:
    told = account({0: lives(range(1, 34), range(31, 61)), 1: lives(range(1, 33), range(31, 61))})
    assert told.known and told.problems == ()
    assert (told.last, told.made, told.repeated) == (60, 60, 3)


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([range(1, 30), range(31, 61)], "a new life began with step 31, after 29: 1 step was lost"),
        ([range(1, 30), range(40, 61)], "a new life began with step 40, after 29: 10 steps were lost"),
        ([[1, 2, 3, 3, 4]], "step 3 came after step 3 in one life"),
        ([[1, 2, 3, 2, 3]], "step 2 came after step 3 in one life"),
        ([[1, 2, 3, 5, 6]], "after step 3 came step 5: 1 step was lost"),
        # What an earlier life reached counts, not only the last one.
        ([range(1, 40), range(31, 35), range(50, 60)], "a new life began with step 50, after 39"),
    ],
)
def test_what_is_wrong_is_said(steps: list[range | list[int]], problem: str) -> None:
    told = account({3: lives(*steps)})
    assert len(told.problems) == 1 and problem in told.problems[0] and told.problems[0].startswith("rank 3: ")


def test_a_script_may_beat_every_ten_steps() -> None:
    told = account({0: lives(range(10, 100, 10), range(50, 130, 10))})
    assert told.problems == () and told.made == 12 and told.repeated == 5
    assert account({0: lives(range(10, 100, 10), range(120, 150, 10))}).problems


def test_ranks_come_equally_far_unless_the_job_was_stopped() -> None:
    ledger = {0: lives(range(1, 10)), 1: lives(range(1, 12))}
    assert account(ledger).problems == ("ranks ended at different steps: rank 0 at 9, rank 1 at 11",)
    assert account(ledger, finished=False).problems == ()


def test_first_step_of_a_life_that_is_noticed_before_it_is_told_makes_no_difference() -> None:
    noticed = [Entry(entry.pid, entry.generation, 0, None) for entry in lives([1], [1])]
    first, second = lives(range(1, 6), range(4, 9))[:5], lives(range(1, 6), range(4, 9))[5:]
    told = account({0: [noticed[0], *first, noticed[1], *second], 1: [*first, *second]})
    assert (told.known, told.problems, told.last, told.repeated) == (True, (), 8, 2)


def test_without_numbers_only_gaps_in_a_life_are_seen() -> None:
    good = [Entry(1, 0, count, None) for count in (1, 2, 3)] + [Entry(2, 1, count, None) for count in (1, 2)]
    told = account({0: good})
    assert not told.known and told.problems == ()
    assert account({0: [Entry(1, 0, 1, None), Entry(1, 0, 3, None)]}).problems
    assert not account({}).known


def test_lines_that_are_cut_off_or_garbage_are_left_out() -> None:
    assert parse_ledger("7 0 1 1\n7 0 2 -\n\n7 0 3\nx 0 1 1\n7 0 3 3") == (
        Entry(7, 0, 1, 1),
        Entry(7, 0, 2, None),
        Entry(7, 0, 3, 3),
    )
