"""Python stacks as values: parsers for what faulthandler and py-spy write. Pure; text may be cut off anywhere."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_FRAMES = 200
MAX_THREADS = 256
# Compiled when first used (re keeps them): the agent imports this at its start.
_THREAD = r"^(Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[(.*)\])? \(most recent call first\):$"
_FRAME = r'^  File "(.*)", line (\d+|\?+) in (.*)$'
_SPY_THREAD = r'^Thread (\S+)(?: \((.*?)\))?(?:: "(.*)")?$'
_LIBRARY = r"^<|/(site|dist)-packages/|/lib(64)?/python3(\.\d+)?/"
_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + "/"
_SPY_FRAME = r"^ +(\S.*?) \((.*?)(?::(\d+))?\)$"


class Frame(NamedTuple):
    """One call. ``line`` is 0 when it is not known."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """``read_batch (train.py:88)``"""
        return f"{self.function} ({self.place})"

    @property
    def place(self) -> str:
        """``train.py:88``"""
        name = self.file.rpartition("/")[2] or self.file
        return f"{name}:{self.line}" if self.line else name


@dataclass(frozen=True)
class ThreadStack:
    """One thread, innermost call first."""

    thread: str
    frames: tuple[Frame, ...]
    name: str = ""
    current: bool = False
    """The thread that answered the signal; the main thread, unless that blocks it."""


@dataclass(frozen=True)
class StackSnapshot:
    """What one rank was doing. Without threads: it did not answer."""

    threads: tuple[ThreadStack, ...] = ()
    source: str = ""
    """``faulthandler`` or ``py-spy``."""
    cut_off: bool = False
    """Not all threads are shown, or the text ends in the middle."""
    text: str = field(default="", compare=False, repr=False)

    @property
    def main(self) -> tuple[Frame, ...]:
        """Calls of the main thread, innermost first, without our bootstrap; empty when they are not known."""
        thread = self.main_thread
        frames = thread.frames if thread is not None else ()
        end = len(frames)
        while end > 1 and frames[end - 1].file.startswith(_OWN_FOLDER):
            end -= 1
        return frames[:end]

    @property
    def main_thread(self) -> ThreadStack | None:
        """faulthandler lists threads from the newest to the oldest, which is the main thread, but at most 100."""
        if not self.threads:
            return None
        named = [thread for thread in self.threads if thread.name == "MainThread"]
        current = [thread for thread in self.threads if thread.current]
        last = self.threads[-1]
        if named:
            return named[0]
        if last.frames and last.frames[-1].function == "<module>" and not self.cut_off:
            return last
        return current[0] if current else last


def parse_faulthandler(text: str) -> StackSnapshot:
    """Parse a dump of all threads; of several in a row the last one. Foreign lines in between are skipped."""
    threads: list[tuple[str, str, bool, list[Frame]]] = []
    cut_off = bool(text) and not text.endswith("\n")
    # Without the last piece: empty, or a line whose end is missing, and half a number is a wrong number.
    for line in text.split("\n")[:-1]:
        header = re.match(_THREAD, line)
        if header is not None:
            identity = header[2]
            if any(identity == known[0] for known in threads):
                # A thread for the second time: another dump begins.
                threads.clear()
                cut_off = bool(text) and not text.endswith("\n")
            if len(threads) < MAX_THREADS:
                threads.append((identity, header[3] or "", header[1] == "Current thread", []))
        elif line == "...":
            cut_off = True
        elif threads:
            frame = re.match(_FRAME, line)
            if frame is not None and len(threads[-1][3]) < MAX_FRAMES:
                threads[-1][3].append(Frame(frame[1], _line(frame[2]), frame[3]))
    found = tuple(ThreadStack(thread, tuple(frames), name, now) for thread, name, now, frames in threads)
    return StackSnapshot(found, "faulthandler" if found else "", cut_off, text)


def parse_pyspy(text: str) -> StackSnapshot:
    """Parse ``py-spy dump --pid``."""
    threads: list[tuple[str, str, list[Frame]]] = []
    for line in text.split("\n"):
        header = re.match(_SPY_THREAD, line)
        if header is not None and len(threads) < MAX_THREADS:
            threads.append((header[1], header[3] or "", []))
            continue
        frame = re.match(_SPY_FRAME, line)
        if frame is not None and threads and len(threads[-1][2]) < MAX_FRAMES:
            threads[-1][2].append(Frame(frame[2], _line(frame[3] or ""), frame[1]))
    found = tuple(ThreadStack(thread, tuple(frames), name) for thread, name, frames in threads)
    return StackSnapshot(found, "py-spy" if found else "", text=text)


def user_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost call of the user's own code; the innermost at all if there is none."""
    for frame in frames:
        if not is_library(frame.file):
            return frame
    return frames[0] if frames else None


def is_library(file: str) -> bool:
    """Whether a file belongs to Python, to an installed package or to us, not to the user."""
    return re.search(_LIBRARY, file) is not None or file.startswith(_OWN_FOLDER)


def _line(text: str) -> int:
    return int(text) if text.isdecimal() else 0
