"""Look at a checkpoint directory: what is complete, newest first, and what is not and why.

Work is bounded whatever the directory holds: one listing, then the entries with the highest step numbers until enough
complete ones are found. Every system call may hang on a dead file server, so run it where that may be
(``python -m ftlaunch.launcher.checkpoints``); ``stop`` is asked between entries.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ftlaunch.launcher.checkpoints import dcp, megatron, names, siblings, trackers
from ftlaunch.launcher.checkpoints.custom import Pattern, Validator, ValidatorError
from ftlaunch.launcher.checkpoints.files import Entry, Facts, Incomplete, list_kinds, look
from ftlaunch.launcher.checkpoints.formats import AUTO, CHOICES, CUSTOM, DCP, HF, Format, format_of
from ftlaunch.launcher.checkpoints.model import MAX_OFFERED, Candidate, Skipped, View, show
from ftlaunch.launcher.checkpoints.siblings import Found

MAX_ENTRIES = 1_000_000
MAX_EXAMINED = 2000
MAX_UNNUMBERED = 50
MAX_DATED = 5000
MAX_SKIPPED = 100
WANTED_WITH_VALIDATOR = 3
SELF_EVIDENT = frozenset({DCP.name, HF.name})
"""Formats whose own metadata is written last: a tracker file adds nothing to them."""


@dataclass(frozen=True)
class Request:
    """What to look for, resolved from the options. ``wanted`` complete ones are enough."""

    format: str = AUTO
    pattern: Pattern | None = None
    validator: Validator | None = None
    wanted: int = MAX_OFFERED

    def __post_init__(self) -> None:
        if self.format not in CHOICES:
            raise ValueError(f"unknown checkpoint format {self.format!r}: one of {', '.join(CHOICES)}")
        if self.format == CUSTOM and self.pattern is None and self.validator is None:
            raise ValueError("--checkpoint-format custom needs --checkpoint-pattern or --checkpoint-validator")


def scan(directory: str, request: Request = Request(), stop: Callable[[], bool] = lambda: False) -> View:
    """Look at ``directory`` once. Raises nothing for what is wrong in there: it is in the view.

    ``stop`` ends the scan early when it gives true (a deadline): what was found so far is kept, ``error`` says so.
    """
    root = os.path.abspath(directory)
    try:
        listed, plain_files = list_kinds(root, MAX_ENTRIES)
    except FileNotFoundError:
        return View(root, missing=True)
    except (OSError, ValueError) as error:
        return View(root, error=f"{show(root)} cannot be listed: {getattr(error, 'strerror', None) or error}")
    return _Scan(root, request, stop, listed, plain_files).run()


@dataclass
class _Scan:
    root: str
    request: Request
    stop: Callable[[], bool]
    listed: frozenset[str]
    plain_files: frozenset[str]
    found: list[Found] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    more_skipped: int = 0
    temporary: list[tuple[int, str]] = field(default_factory=list)
    numbered_seen: bool = False
    """Something numbered was a checkpoint, whole or not: steps are in the names here."""
    seen: dict[tuple[int, int], str] = field(default_factory=dict)
    error: str | None = None

    def run(self) -> View:
        numbered, unnumbered = self._sort_names()
        try:
            self._examine_numbered(numbered)
            self._examine_unnumbered(unnumbered)
        except ValidatorError as error:
            return View(self.root, error=str(error))
        if len(self.listed) >= MAX_ENTRIES:
            self.error = f"{show(self.root)} has more than {MAX_ENTRIES} entries, the rest was not looked at"
        whole, lacking = siblings.drop_lacking(self.found)
        for one in lacking:
            self._skip(one.path, one.reason)
        whole = self._follow_trackers(siblings.one_per_file_group(whole))
        self._skip_temporary()
        return View(self.root, _newest_first(whole), self._all_skipped(), self.error)

    def _sort_names(self) -> tuple[list[tuple[int, str]], list[str]]:
        """Names with a step, and those without one that could be a checkpoint all the same."""
        numbered: list[tuple[int, str]] = []
        unnumbered: list[str] = []
        for name in self.listed:
            matches, step = self._parse(name)
            if not matches or self._is_foreign(name):
                continue
            if self.request.pattern is None and names.is_temporary(name):
                if step is not None or names.mentions_suffix(name):
                    self.temporary.append((-1 if step is None else step, name))
            elif step is None:
                unnumbered.append(name)
            else:
                numbered.append((step, name))
        return numbered, unnumbered

    def _parse(self, name: str) -> tuple[bool, int | None]:
        if self.request.pattern is not None:
            return self.request.pattern.step_of(name)
        if name in trackers.NAMES and os.path.isfile(os.path.join(self.root, name)):
            return False, None
        if name.startswith(".") and not names.is_temporary(name):
            return False, None
        if name == megatron.RELEASE:
            return True, 0
        return True, names.step_of(name)

    def _is_foreign(self, name: str) -> bool:
        """A plain file of some other suffix, told without touching it: there may be many thousands of them."""
        if self.request.pattern is not None or self.request.format == CUSTOM or names.is_temporary(name):
            return False
        return name in self.plain_files and not names.may_be_file(name)

    def _examine_numbered(self, numbered: list[tuple[int, str]]) -> None:
        enough = self._wanted()
        steps: set[int] = set()
        for step, name in heapq.nlargest(MAX_EXAMINED, numbered):
            # All entries of one step are looked at, so that a file missing beside another shows.
            if (len(steps) >= enough and step not in steps) or self._out_of_time():
                return
            if self._examine(name, step):
                steps.add(step)

    def _wanted(self) -> int:
        if self.request.validator is not None:
            return min(self.request.wanted, WANTED_WITH_VALIDATOR)
        return self.request.wanted

    def _out_of_time(self) -> bool:
        if self.error is None and self.stop():
            self.error = f"{show(self.root)} took too long to look at, after {len(self.found)} complete checkpoints"
        return self.error is not None

    def _examine(self, name: str, step: int | None) -> bool:
        path = os.path.join(self.root, name)
        try:
            entry, fmt = self._recognise(path, name)
            if fmt is None:
                self._explain_unknown(entry, step)
                return False
            self.numbered_seen = self.numbered_seen or step is not None
            facts = fmt.verify(entry)
            if self.request.validator is not None:
                self.request.validator.check(path)
        except Incomplete as reason:
            self._skip(path, str(reason))
            return False
        self._keep(entry, fmt, facts, step)
        return True

    def _recognise(self, path: str, name: str) -> tuple[Entry, Format | None]:
        marker = _unfinished_marker(name)
        if marker in self.listed:
            raise Incomplete(f"{show(marker)} says that the save did not finish")
        entry = look(path)
        return entry, format_of(entry, self.request.format)

    def _explain_unknown(self, entry: Entry, step: int | None) -> None:
        if step is None:
            return
        if entry.is_dir and not entry.children:
            self._skip(entry.path, "an empty directory")
        elif entry.is_dir or names.may_be_file(entry.name):
            what = "a known format" if self.request.format == AUTO else f"the format {self.request.format}"
            self._skip(entry.path, f"nothing of {what} in it")

    def _keep(self, entry: Entry, fmt: Format, facts: Facts, step: int | None) -> None:
        twin = self.seen.setdefault(entry.identity, entry.path)
        if twin != entry.path:
            return  # the same thing by another name: a link
        if facts.step is not None and (step is None or names.step_is_epoch(entry.name)):
            step = facts.step
        candidate = Candidate(entry.path, step, fmt.name, entry.mtime_ns)
        self.found.append(Found(candidate, entry.name, entry.is_dir, facts.parts))

    def _examine_unnumbered(self, unnumbered: list[str]) -> None:
        """What tells no step by its name: ``last.ckpt``, ``ckpt.pt``, the directory itself when it is a checkpoint."""
        before = len(self.found)
        for name in self._recent(unnumbered):
            if self._out_of_time():
                break
            self._examine(name, None)
        else:
            self._examine_root()
        fresh = self.found[before:]
        self.found[before:] = [one for one in fresh if self._may_compete(one, fresh)]

    def _recent(self, unnumbered: Iterable[str]) -> list[str]:
        telling = sorted(
            unnumbered, key=lambda name: (not names.is_newest_by_name(name), not names.is_plain(name), name)
        )
        dated: list[tuple[int, str]] = []
        for name in telling[:MAX_DATED]:
            path = os.path.join(self.root, name)
            try:
                dated.append((os.lstat(path).st_mtime_ns, name))
            except OSError:
                continue  # vanished since it was listed
        return [name for _, name in heapq.nlargest(MAX_UNNUMBERED, dated)]

    def _examine_root(self) -> None:
        if (
            dcp.METADATA not in self.listed
            or self.request.pattern is not None
            or DCP not in CHOICES[self.request.format]
        ):
            return
        try:
            entry = look(self.root)
            facts = dcp.verify_overwritten(entry)
            if self.request.validator is not None:
                self.request.validator.check(self.root)
        except Incomplete as reason:
            self._skip(self.root, str(reason))
        else:
            self._keep(entry, DCP, facts, None)

    def _may_compete(self, one: Found, fresh: list[Found]) -> bool:
        if one.candidate.step is not None or self.request.pattern is not None or names.is_newest_by_name(one.name):
            return True
        if self.numbered_seen:
            self._skip(one.candidate.path, "its step is not known, and others here tell theirs")
            return False
        others = [other for other in fresh if other is not one and other.candidate.step is None]
        if not others or (names.is_plain(one.name) and not any(names.is_plain(other.name) for other in others)):
            return True
        self._skip(one.candidate.path, "one of several without a step: --checkpoint-pattern can say which counts")
        return False

    def _follow_trackers(self, whole: list[Found]) -> list[Found]:
        for name in trackers.NAMES:
            if name not in self.listed or self.request.pattern is not None:
                continue
            try:
                tracker = trackers.read(self.root, name)
            except Incomplete as reason:
                self._skip(os.path.join(self.root, name), str(reason))
                continue
            if tracker is not None:
                whole = self._follow(tracker, whole)
        return whole

    def _follow(self, tracker: trackers.Tracker, whole: list[Found]) -> list[Found]:
        target = next((one for one in whole if tracker.points_at(one.name, one.candidate.step)), None)
        if target is None or target.candidate.step is None:
            if target is None:
                self._skip(tracker.path, f"points at {show(tracker.text[:60])}, which is not there or not complete")
            return whole
        kept: list[Found] = []
        for one in whole:
            step = one.candidate.step
            if one.is_dir and step is not None and step > target.candidate.step and _needs_tracker(one):
                reason = f"newer than {show(os.path.basename(tracker.path))} says ({target.candidate.step})"
                self._skip(one.candidate.path, f"{reason}: the save was not committed")
            else:
                kept.append(one)
        return kept

    def _skip_temporary(self) -> None:
        for _, name in heapq.nlargest(MAX_SKIPPED, self.temporary):
            self._skip(os.path.join(self.root, name), "a temporary name: the save did not finish")
        self.more_skipped += max(0, len(self.temporary) - MAX_SKIPPED)

    def _skip(self, path: str, reason: str) -> None:
        if len(self.skipped) < MAX_SKIPPED:
            self.skipped.append(Skipped(path, reason))
        else:
            self.more_skipped += 1

    def _all_skipped(self) -> tuple[Skipped, ...]:
        if not self.more_skipped:
            return tuple(self.skipped)
        return (*self.skipped, Skipped(self.root, f"{self.more_skipped} more entries were skipped"))


def _unfinished_marker(name: str) -> str:
    # NeMo keeps one marker for a file and the average of its weights saved beside it.
    stem = names.strip_suffix(name)
    return stem.removesuffix("-EMA") + names.UNFINISHED


def _needs_tracker(one: Found) -> bool:
    return one.candidate.format not in SELF_EVIDENT


def _newest_first(found: list[Found]) -> tuple[Candidate, ...]:
    """By step, highest first; one without a step stands before the first one that is not younger than it."""
    candidates = [one.candidate for one in found]
    ordered = sorted(
        (c for c in candidates if c.step is not None), key=lambda c: (c.step, c.mtime_ns, c.path), reverse=True
    )
    for loose in sorted((c for c in candidates if c.step is None), key=lambda c: (c.mtime_ns, c.path)):
        place = next((i for i, other in enumerate(ordered) if other.mtime_ns <= loose.mtime_ns), len(ordered))
        ordered.insert(place, loose)
    return tuple(ordered)
