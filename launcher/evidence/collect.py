"""Everything the node itself knows about one generation's end, collected in one place."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ftlaunch.launcher.evidence.diagnosis import NodeEvidence
from ftlaunch.launcher.evidence.kernel_log import KernelLog, open_kernel_log, parse_fault
from ftlaunch.launcher.evidence.oom import OomWatch
from ftlaunch.launcher.gpu.model import XidEvent
from ftlaunch.launcher.host import shm


class NodeWatch:
    """Made once by :func:`open_node_watch`; :meth:`begin` for each generation, :meth:`look` after a death."""

    def __init__(self, oom: OomWatch, log: KernelLog | None = None) -> None:
        self._oom = oom
        self._log = log
        self._xids_before = 0

    def begin(self, pids: Collection[int], xids: Sequence[XidEvent] = ()) -> None:
        """The ranks run: remember where all counters stand. ``xids``: all that were ever reported."""
        self._oom.begin(pids)
        self._xids_before = len(xids)

    def refresh(self) -> None:
        """Some time after :meth:`begin`, and now and then: ranks may have moved to other control groups."""
        self._oom.refresh()

    def look(self, xids: Sequence[XidEvent] = ()) -> NodeEvidence:
        """What happened since; may be called as often as one likes. A few small reads, below 1 ms."""
        facts = self._oom.look()
        faults = (parse_fault(line) for line in self._oom.lines)
        return NodeEvidence(
            oom=facts,
            xids=tuple(xids[self._xids_before :]),
            kernel_faults=dict(fault for fault in faults if fault is not None),
            shm_free_fraction=shm.free_fraction(),
        )

    def close(self) -> None:
        """Close the kernel log."""
        if self._log is not None:
            self._log.close()
            self._log = None


def open_node_watch() -> NodeWatch:
    """With the kernel log where it may be read; without it the counters alone tell."""
    log = open_kernel_log()
    return NodeWatch(OomWatch(log), log)
