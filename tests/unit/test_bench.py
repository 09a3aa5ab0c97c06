"""The arithmetic behind the numbers: what a fault cost, goodput, medians, what is kept of an interrupted bench."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench_lib import contenders, nodes, recovery
from bench_lib.__main__ import estimate, parse_args
from bench_lib.__main__ import measure as take_all
from bench_lib.items import ITEMS
from bench_lib.report import markdown
from bench_lib.results import Results, Sample, lines, load, machine
from bench_lib.runner import Failed
from bench_lib.settings import QUICK, Settings


def story_of(*rows: tuple[float, int, int, str, int]) -> list[dict[str, Any]]:
    """Events from (t, rank, pid, event, step); the first line of a script runs half a second before its start."""
    keys = ("t", "rank", "pid", "event", "step")
    return [{**dict(zip(keys, row, strict=True)), "t_first": row[0] - 0.5, "kind": "kill"} for row in rows]


KILLED = story_of(
    (1.0, 0, 10, "start", 0),
    (1.0, 1, 11, "start", 0),
    (2.0, 0, 10, "step", 1),
    (3.0, 0, 10, "step", 2),
    (3.0, 1, 11, "fault", 2),
    (3.1, 0, 10, "step", 3),
    (5.0, 0, 20, "start", 1),
    (5.2, 1, 21, "start", 1),
    (6.0, 0, 20, "step", 2),
    (7.0, 0, 20, "step", 3),
    (7.5, 0, 20, "done", 3),
)


def test_recovery_counts_from_the_fault_and_not_with_a_survivors_last_step() -> None:
    (found,) = recovery.recoveries(KILLED)
    assert (found.kind, found.step) == ("kill", 2)
    assert (found.respawn_s, found.resume_s) == pytest.approx((1.5, 3.0))


def test_a_fault_without_recovery_never_resumes() -> None:
    (found,) = recovery.recoveries(KILLED[:6])
    assert found.respawn_s == found.resume_s == float("inf")


def test_goodput_counts_each_step_once_or_as_often_as_it_was_done() -> None:
    share = recovery.goodput(KILLED, wall_s=10.0)
    assert share.training == pytest.approx((1.0 + 1.0 + 0.1) / 10)
    assert share.infrastructure == pytest.approx((1.0 + 1.0 + 0.1 + 1.0 + 1.0) / 10)
    assert recovery.done(KILLED) == {0}


def test_events_are_read_in_order_and_without_the_line_that_was_cut_off(tmp_path: Path) -> None:
    (tmp_path / "rank0.jsonl").write_text('{"t": 2.0, "event": "step"}\n{"t": 3.0, "ev')
    (tmp_path / "rank1.jsonl").write_text('{"t": 1.0, "event": "step"}\n')
    assert [(event["t"], event["rank"]) for event in recovery.events(tmp_path)] == [(1.0, 1), (2.0, 0)]


@pytest.fixture
def about() -> dict[str, Any]:
    return {**machine(), "versions": {"torch": "1"}}


def test_item_letters_and_what_each_compares() -> None:
    assert "".join(item.letter for item in ITEMS) == "abcdefghijklm"
    assert all(item.contenders[0].name.startswith("ftlaunch") for item in ITEMS)


def test_contender_builds_its_command_line() -> None:
    command = contenders.TORCHRUN.command(Path("train.py"), 2, 3)
    assert command[1:] == ["--standalone", "--nproc-per-node", "2", "--max-restarts", "3", "train.py"]
    assert contenders.FTLAUNCH_COLD.command(Path("t.py"), 1)[1:3] == ["--standby", "off"]


def test_an_item_that_cannot_be_measured_here_is_left_out_in_one_line(
    tmp_path: Path, about: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    def never(contender: contenders.Contender, settings: Settings) -> dict[str, float]:
        raise AssertionError("measured all the same")

    item = replace(ITEMS[0], sample=never, missing=lambda: "needs root for network namespaces")
    results = Results(tmp_path / "r.json", about, [])
    take_all([item], parse_args([]), QUICK, results)
    assert capsys.readouterr().out == "(a) left out: needs root for network namespaces\n"
    assert not results.samples


def test_the_price_of_standbys_is_told_pair_by_pair(tmp_path: Path, about: dict[str, Any]) -> None:
    """The machine became twice as fast between the pairs: medians of each would say nothing."""
    warm, cold = (contender.name for contender in next(item for item in ITEMS if item.letter == "i").contenders)
    times = [(warm, 0, 10.1), (cold, 0, 10.0), (cold, 1, 5.0), (warm, 1, 5.05), (warm, 2, 1.0)]
    samples = [Sample("i", name, number, {"step_ms": ms, "launcher_cpu_percent": 0.2}) for name, number, ms in times]
    samples.append(Sample("i", cold, 2, {}, "Failed: no"))
    page = markdown(Results(tmp_path / "r.json", about, samples))
    assert f"{warm} over {cold}, in 2 pairs of neighbouring samples: median 1.010, mean 1.010 (1.010 … 1.010)" in page
    assert "0.20 % and 0.20 % of a core" in page


def test_the_time_it_takes_is_told_before() -> None:
    items = [replace(ITEMS[0], seconds=30.0, repeats=4), replace(ITEMS[1], seconds=60.0, repeats=1)]
    assert estimate(items, parse_args([])) == "about 3 minutes (a 2.0, b 1.0)"
    assert estimate(items, parse_args(["--quick"])) == "about 2 minutes (a 0.5, b 1.0)"
    assert estimate(items, parse_args(["--repeat", "10"])) == "about 15 minutes (a 5.0, b 10.0)"


def test_a_quick_bench_leaves_the_results_alone() -> None:
    def files(*arguments: str) -> list[str]:
        args = parse_args(arguments)
        return [os.path.relpath(path, contenders.ROOT) for path in (args.output, args.picture)]

    assert files() == ["bench/results.json", "docs/bench.svg"]
    assert files("--quick") == [".bench/quick.json", ".bench/quick.svg"]
    assert files("--quick", "--output", "bench/a.json", "--picture", "docs/a.svg") == ["bench/a.json", "docs/a.svg"]


def test_phases_on_two_nodes_count_from_the_fault_to_the_last_agent(tmp_path: Path) -> None:
    def event(name: str, monotonic: float, **fields: Any) -> dict[str, Any]:
        return {"event": name, "monotonic": monotonic, **fields}

    told = {
        "a": [event("training_resumed", 9.0), event("failure_detected", 10.02), event("rendezvous_completed", 10.05)],
        "b": [event("failure_detected", 10.01), event("rendezvous_completed", 10.04)],
    }
    for host, number in (("a", 2), ("b", 1)):
        told[host] += [event("workers_started", 10.1, warm=number), event("training_resumed", 10.2 + number)]
    cluster: Any = SimpleNamespace(agents=told, events=told.__getitem__)
    found = nodes._phases(cluster, 10.0)
    assert found.pop("warm") == 3
    assert found == pytest.approx(
        {"agreeing_ms": 40.0, "known_ms": 20.0, "agreed_ms": 50.0, "started_ms": 100.0, "first_beat_ms": 2200.0}
    )


def test_the_page_has_a_row_per_launcher_size_and_phase(tmp_path: Path, about: dict[str, Any]) -> None:
    about |= {"cpu": "a processor", "cores": 2, "memory_gb": 4, "kernel": "6"}
    crowd = ITEMS[9].contenders[0].name
    phases = dict.fromkeys(("known_ms", "agreed_ms", "stopped_ms", "started_ms", "first_beat_ms"), 30.0)
    samples = [
        Sample("b", "ftlaunch", 0, {"resume_s": 0.2}),
        Sample("b", "torchrun", 0, {"resume_s": 3.0}),
        Sample("j", crowd, 0, {"nodes": 10.0, "form_s": 0.5, "reform_s": 0.25, "reform_messages_per_agent": 5.2}),
        Sample("k", "ftlaunch", 0, {"resume_s": 0.4, "agreeing_ms": 8.0, **phases}),
    ]
    page = markdown(Results(tmp_path / "r.json", about, samples))
    assert "| b. SIGKILL of a rank → first new step | torchrun | 3 s | 15.00 | 3 … 3 | 1 |" in page
    assert "\n| 10 | 0.50 | 0.25 | 5.2 |" in page
    assert "| ftlaunch | 30 | 30 | 30 | 30 | 30 | 8 |" in page


def test_bad_item_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse_args(["--only", "az"])
    assert stop.value.code == 2
    assert "no item z" in capsys.readouterr().err


def test_contenders_take_turns_and_a_failure_is_recorded(
    tmp_path: Path, about: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    order = []

    def sample(contender: contenders.Contender, settings: Settings) -> dict[str, float]:
        order.append(contender.name)
        if contender is contenders.NVRX:
            raise Failed("did not end")
        return {"wall_s": float(len(order))}

    item = replace(ITEMS[0], sample=sample)
    results = Results(tmp_path / "deep" / "results.json", about, [])
    take_all([item], parse_args(["--repeat", "2"]), QUICK, results)
    first = [contender.name for contender in item.contenders]
    assert order == first + first[::-1]
    again = load(results.path, about)
    assert again.values("a", "ftlaunch", "wall_s") == [1.0, 6.0]
    assert [sample.error for sample in again.samples if sample.error] == ["Failed: did not end"] * 2
    document = json.loads(results.path.read_text())
    assert document["medians"]["a"]["ftlaunch"] == {"wall_s": 3.5}

    order.clear()
    take_all([item], parse_args(["--repeat", "2", "--resume"]), QUICK, again)
    assert order == ["NVRx 0.4.1"] * 2, "only what failed is tried again"
    text = "\n".join(lines(again, [item]))
    assert "2 failed: Failed: did not end" in text and "ftlaunch" in text
    capsys.readouterr()


def test_every_sample_keeps_the_version_it_was_measured_with(tmp_path: Path, about: dict[str, Any]) -> None:
    path = tmp_path / "r.json"
    old = [{"item": item, "contender": "ftlaunch", "repetition": 0, "figures": {}} for item in "ba"]
    former = {**about, "versions": {"ftlaunch": "0ld", "torch": "1"}}
    path.write_text(json.dumps({"about": former, "samples": old}))
    assert load(path, {}).versions() == "ftlaunch 0ld, torch 1", "a sample that tells none is of the file's version"
    results = load(path, {**about, "versions": {"ftlaunch": "n3w", "torch": "2"}})
    assert results.versions() == "ftlaunch 0ld, torch 2", "nothing is measured with the new one yet"
    results.add(Sample("c", "ftlaunch", 0, {"resume_s": 1.0}))
    results.add(Sample("d", "torchrun", 0, {"resume_s": 1.0}))
    results.add(Sample("e", "ftlaunch", 0, {}, "Failed: did not end"))
    assert load(path, {}).versions() == "ftlaunch 0ld (a, b); n3w (c), torch 2"
    assert "; ftlaunch 0ld (a, b); n3w (c), torch 2." in markdown(results)


def test_an_item_measured_again_replaces_its_samples_only(tmp_path: Path, about: dict[str, Any]) -> None:
    results = Results(tmp_path / "r.json", about, [Sample("a", "x", 0, {"v": 1.0}), Sample("b", "x", 0, {"v": 2.0})])
    results.forget("a")
    results.add(Sample("a", "x", 0, {"v": 3.0}))
    assert results.values("a", "x", "v") == [3.0] and results.values("b", "x", "v") == [2.0]
