"""What the parts of a job know, for an inquiry into a failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ftlaunch.launcher.config import Stream
from ftlaunch.launcher.hearing.hearing import Hearing
from ftlaunch.launcher.node.keeper import NodeKeeper
from ftlaunch.launcher.output.pump import OutputPump
from ftlaunch.launcher.say import Say

if TYPE_CHECKING:
    from ftlaunch.launcher.gpu.model import XidEvent


class Facts:
    """What an inquiry into a failure asks the parts of a job for."""

    def __init__(
        self, pump: OutputPump, hearing: Hearing, keeper: NodeKeeper, say: Say, ended: Callable[[], bool]
    ) -> None:
        """``ended``: whether the guardian has ended the ranks since it was asked last."""
        self._ended = ended
        self._pump = pump
        self._hearing = hearing
        self._keeper = keeper
        self._say = say

    def tail(self, generation: int, local_rank: int) -> Sequence[bytes]:
        """The last lines that the rank wrote to stderr."""
        return self._pump.tail(generation, local_rank, Stream.ERR)

    def ages(self, at: float) -> Mapping[int, float]:
        """By local rank: how long before that moment it made progress. Empty where ranks are not heard."""
        if not self._hearing.socket_path:
            return {}
        return {track.local_rank: max(0.0, at - track.progress_at) for track in self._hearing.watch.tracks.ranks}

    def xids(self) -> Sequence[XidEvent]:
        """All critical errors that the GPU driver ever reported."""
        return self._keeper.gpus.xids if self._keeper.gpus is not None else ()

    def gpus(self) -> Mapping[int, str]:
        """By pid: the UUID of its device, where the driver has told."""
        return self._keeper.gpu_of

    def ended_by_guardian(self) -> bool:
        """Asked once for each time."""
        return self._ended()

    def warn(self, text: str) -> None:
        """Tell the user."""
        self._say.warning(text)
