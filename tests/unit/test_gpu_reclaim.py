"""Whether GPU memory is back: the judgement as tables, the driver with a clock that only moves when it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ftlaunch.launcher.gpu.baseline import Baseline, raise_baseline, take_baseline
from ftlaunch.launcher.gpu.model import DeviceSample, Holder, ProcessUse
from ftlaunch.launcher.gpu.nvml_errors import NvmlDead, NvmlError, NvmlHung
from ftlaunch.launcher.gpu.reclaim import ReclaimRequest, reclaim, reclaimed
from ftlaunch.launcher.host.visible import Device
from ftlaunch.launcher.wording import format_bytes

GIB, MIB = 1 << 30, 1 << 20
GPU = Device("GPU-a", 0, "H100")
OURS = frozenset({41, 42})
NEIGHBOUR = ProcessUse(7, 30 * GIB, "python")


def look(used: int | None, *processes: ProcessUse, blind: bool = False, lost: str = "") -> DeviceSample:
    return DeviceSample(GPU, used, 80 * GIB, None if blind else processes, lost)


def before(*samples: DeviceSample) -> Baseline:
    return take_baseline(samples or (look(GIB),))


@pytest.mark.parametrize(
    ("baseline", "sample", "done"),
    [
        pytest.param(before(), look(GIB), True, id="at the baseline"),
        pytest.param(before(), look(GIB + 200 * MIB), True, id="within tolerance"),
        pytest.param(before(), look(3 * GIB), False, id="nobody listed, memory still used"),
        pytest.param(before(), look(GIB, ProcessUse(41, 0, "python")), False, id="ours holds a context"),
        pytest.param(before(), look(3 * GIB, ProcessUse(41, 2 * GIB)), False, id="ours is dead but listed"),
        pytest.param(before(), look(GIB, ProcessUse(99, 0, "python", True)), False, id="marked, pid unknown to us"),
        pytest.param(before(), look(31 * GIB, NEIGHBOUR), True, id="a neighbour came"),
        pytest.param(before(), look(33 * GIB, NEIGHBOUR), False, id="a neighbour came, and ours is not back"),
        pytest.param(before(look(31 * GIB, NEIGHBOUR)), look(GIB), True, id="the neighbour left"),
        pytest.param(
            before(look(31 * GIB, NEIGHBOUR)),
            look(41 * GIB, ProcessUse(7, 40 * GIB, "python")),
            True,
            id="the neighbour grew",
        ),
        pytest.param(
            before(look(31 * GIB, ProcessUse(7, 30 * GIB))),
            look(41 * GIB, ProcessUse(7, 40 * GIB)),
            True,
            id="a neighbour in another PID namespace grew",
        ),
        pytest.param(before(), look(3 * GIB, ProcessUse(90001, 2 * GIB)), False, id="an unseen pid may be ours"),
        pytest.param(before(), look(5 * GIB, ProcessUse(7, None, "python")), True, id="the neighbour's use is hidden"),
        pytest.param(before(look(None)), look(None), True, id="no numbers at all: pids alone count"),
        pytest.param(before(look(None)), look(None, ProcessUse(42)), False, id="no numbers, but ours is listed"),
        pytest.param(before(look(GIB, blind=True)), look(3 * GIB, blind=True), False, id="no list: memory counts"),
        pytest.param(before(look(GIB, blind=True)), look(GIB, blind=True), True, id="no list, memory back"),
        pytest.param(before(), look(None, lost="has fallen off the bus"), False, id="the GPU is gone"),
    ],
)
def test_judgement(baseline: Baseline, sample: DeviceSample, done: bool) -> None:
    assert reclaimed(baseline, [sample], OURS).done is done


def test_judgement_names_device_holder_and_amount() -> None:
    judged = reclaimed(before(), [look(3 * GIB, ProcessUse(41, 2 * GIB, "python"))], OURS)
    assert judged.reason == "GPU 0 (GPU-a): pid 41 (python) holds 2 GiB"
    assert judged.holders == (Holder(41, "python", True, 2 * GIB),)
    assert reclaimed(before(), [look(3 * GIB)], OURS).reason == (
        "GPU 0 (GPU-a): 2 GiB more in use than before the ranks started, and the driver lists no process that holds it"
    )
    unseen = reclaimed(before(), [look(3 * GIB, ProcessUse(90001, 2 * GIB))], OURS)
    assert unseen.reason.endswith("by pid 90001 which can't be seen from here")


def test_a_standby_with_a_context_is_not_waited_for() -> None:
    sample = look(GIB + 500 * MIB, ProcessUse(42, 500 * MIB, "python", True))
    assert reclaimed(before(), [sample], OURS, exempt={42}).done
    assert not reclaimed(before(), [sample], OURS).done


def test_a_lost_gpu_is_not_waited_for() -> None:
    judged = reclaimed(before(), [look(None, lost="has fallen off the bus"), look(3 * GIB)], OURS)
    assert judged.hopeless and "GPU 0 (GPU-a) has fallen off the bus" in judged.reason


def test_a_hidden_tenant_that_came_later_is_told_from_us_while_ours_are_listed() -> None:
    running = look(25 * GIB, ProcessUse(41, 4 * GIB, "python"))
    raised = raise_baseline(before(), [running], OURS)
    assert not reclaimed(before(), [look(21 * GIB)], OURS).done
    assert reclaimed(raised, [look(21 * GIB)], OURS).done
    assert not reclaimed(raised, [look(25 * GIB)], OURS).done


def test_the_baseline_is_not_raised_where_the_driver_hides_our_own_pids() -> None:
    running = look(25 * GIB, ProcessUse(90001, 4 * GIB))
    assert raise_baseline(before(), [running], OURS) == before()
    assert raise_baseline(before(), [look(25 * GIB, blind=True)], OURS) == before()


class Script:
    """Looks from a list, the last one for ever. Its clock moves when somebody waits."""

    def __init__(
        self, looks: Sequence[DeviceSample], holders: Sequence[Holder] = (), wrong: dict[int, NvmlError] | None = None
    ) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        self.searches: list[bool] = []
        self._looks = list(looks)
        self._holders = tuple(holders)
        self._wrong = wrong or {}
        self._asked = 0

    async def sample(self) -> tuple[DeviceSample, ...]:
        self._asked += 1
        if self._asked in self._wrong:
            raise self._wrong[self._asked]
        return (self._looks.pop(0) if len(self._looks) > 1 else self._looks[0],)

    async def find_holders(self, kill: bool) -> tuple[Holder, ...]:
        self.searches.append(kill)
        return self._holders

    async def wait(self, delay_s: float) -> None:
        self.waits.append(delay_s)
        self.now += delay_s

    def run(self, **request: float) -> tuple[bool, str, float, int, tuple[Holder, ...]]:
        wanted = ReclaimRequest(OURS, **request)  # type: ignore[arg-type]
        outcome = asyncio.run(reclaim(self, before(), wanted, lambda: self.now, self.wait))
        return outcome.done, outcome.reason, outcome.elapsed_s, outcome.looks, outcome.killed


def test_free_at_the_first_look_costs_no_wait() -> None:
    script = Script([look(GIB)])
    done, _, elapsed, looks, _ = script.run()
    assert (done, elapsed, looks, script.searches) == (True, 0.0, 1, [])


def test_late_release_is_seen_at_the_next_look() -> None:
    script = Script([look(9 * GIB)] * 3 + [look(GIB)])
    done, _, elapsed, looks, _ = script.run()
    assert done and looks == 4 and elapsed == pytest.approx(0.06)


def test_the_interval_grows_to_50_ms() -> None:
    script = Script([look(9 * GIB)] * 60 + [look(GIB)])
    assert script.run()[0]
    assert {script.waits[0], script.waits[-1]} == {0.02, 0.05}


def test_what_never_comes_back_is_bounded_and_named() -> None:
    holders = [Holder(41, "python", True), Holder(7, "Xorg")]
    script = Script([look(9 * GIB)], holders)
    done, reason, elapsed, _, killed = script.run(timeout_s=2.0)
    assert not done and 2.0 <= elapsed < 2.1
    assert reason.startswith("GPU memory not back after 2 s: GPU 0 (GPU-a): 8 GiB more in use")
    assert "held by pid 41 (python) of this run" in reason
    assert "also held by pid 7 (Xorg), not of this run" in reason
    assert killed == (holders[0],) and all(script.searches)


def test_a_lost_gpu_ends_the_wait_at_once() -> None:
    script = Script([look(9 * GIB), look(None, lost="has fallen off the bus")])
    done, reason, elapsed, _, _ = script.run()
    assert not done and "fallen off the bus" in reason and elapsed == pytest.approx(0.02)


def test_a_driver_that_hangs_is_an_outcome() -> None:
    script = Script([look(9 * GIB)], wrong={3: NvmlHung("the NVIDIA driver did not answer within 5 s")})
    done, reason, *_ = script.run()
    assert not done and "did not answer" in reason


def test_a_helper_that_was_killed_is_asked_again() -> None:
    script = Script([look(9 * GIB)] * 2 + [look(GIB)], wrong={2: NvmlDead("it has ended")})
    assert script.run()[0]


def test_what_cannot_be_asked_is_not_held_against_the_node() -> None:
    script = Script([look(9 * GIB)], wrong={2: NvmlDead("it has ended"), 3: NvmlDead("it has ended")})
    done, reason, *_ = script.run()
    assert done and reason == "whether GPU memory is back could not be checked: it has ended"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (64 * MIB, "64 MiB"), (3 * GIB // 2, "1.5 GiB"), (5000 * GIB, "4.9 TiB")],
)
def test_sizes_read_well(count: int, text: str) -> None:
    assert format_bytes(count) == text
