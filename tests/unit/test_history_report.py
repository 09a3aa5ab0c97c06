"""What people read: the summary line, the advice, the report as text, JSON and a page."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ftlaunch.launcher.ftctl import __main__ as ftctl
from ftlaunch.launcher.history.advice import advice
from ftlaunch.launcher.history.goodput import account
from ftlaunch.launcher.history.html import NO_PICTURES, render_html
from ftlaunch.launcher.history.read import read_history
from ftlaunch.launcher.history.summary import summary_line
from ftlaunch.launcher.history.tables import node_table
from ftlaunch.launcher.history.text import render_text
from ftlaunch.launcher.history.together import Job, put_together
from ftlaunch.launcher.history.wording import percent
from ftlaunch.launcher.wording import seconds
from support.event_logs import EventLogWriter, Fault, write_run

Draw = Callable[[Job], dict[str, str]]
SIGKILL = Fault(50, kept=40)
RAISED = Fault(30, kind="exception", reason="RuntimeError: <script>alert(1)</script> & \x1b[31mred\x1b[0m", kept=60)


@pytest.fixture(scope="module")
def draw() -> Draw:
    """matplotlib keeps the fonts open that it has used once: before anybody looks for leaks."""
    pytest.importorskip("matplotlib")
    from ftlaunch.launcher.history import pictures

    with tempfile.TemporaryDirectory() as folder:
        pictures.draw(job_of(Path(folder), SIGKILL))
    return pictures.draw


def story(folder: Path, *faults: Fault, total: int = 200) -> str:
    history = read_history(write_run(folder, EventLogWriter().run(faults, total)))
    return summary_line(history, account(history))


def test_summary_of_a_job(tmp_path: Path) -> None:
    # 20 s of steps, 0.5 s of set-up, 0.5 s at the end.
    assert story(tmp_path / "a") == "ran 21.0 s, 200 steps, no restart, goodput 95.1 % training / 95.1 % infrastructure"


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ([SIGKILL], "1 restart (SIGKILL)"),
        ([SIGKILL, SIGKILL], "2 restarts (SIGKILL)"),
        ([SIGKILL, RAISED, SIGKILL], "3 restarts (2 SIGKILL, 1 exception)"),
        ([Fault(5, kind="exit"), Fault(5, kind="lease")], "2 restarts (1 exit code, 1 lost lease)"),
        ([Fault(5, kind="what")], "1 restart (other)"),
        (
            [Fault(2, kind=kind) for kind in ("exit", "lease", "peer", "stall", "spawn")],
            "5 restarts (1 another node, 1 exit code, 1 failed start, 1 lost lease, 1 stall)",
        ),
        (
            [Fault(2, kind=kind) for kind in ("exit", "lease", "peer", "request", "stall", "spawn")],
            "6 restarts (1 another node, 1 exit code, 1 failed start, 1 lost lease, 2 other)",
        ),
    ],
)
def test_summary_counts_restarts_by_cause(tmp_path: Path, faults: list[Fault], said: str) -> None:
    line = story(tmp_path / "run", *faults)
    assert said in line
    assert re.search(r"goodput \d+\.\d % training / \d+\.\d % infrastructure, [\d.]+ m?s lost$", line)


def test_summary_claims_no_goodput_without_beats(tmp_path: Path) -> None:
    log = EventLogWriter()
    log.write("job_started")
    log.start(0)
    log.finish(0, 5.0)
    history = read_history(write_run(tmp_path / "run", log.events))
    assert summary_line(history, account(history)) == "ran 5.0 s, no restart, goodput not known: no beat was heard"


def test_summary_of_a_job_whose_beats_had_no_numbers(tmp_path: Path) -> None:
    log = EventLogWriter()
    log.run([], 100)
    for event in log.events:
        if event["event"] == "progress":
            event["step"] = None
    history = read_history(write_run(tmp_path, log.events))
    assert summary_line(history, account(history)).endswith("% infrastructure (no steps were told or counted)")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        *((0.0, "0.0 ms"), (0.0004, "0.4 ms"), (0.0123, "12 ms"), (0.26, "0.26 s"), (4.24, "4.2 s"), (99.94, "99.9 s")),
        *(
            (412.3, "412 s"),
            (1265.0, "21 min 05 s"),
            (3599.6, "1 h 00 min"),
            (3900.0, "1 h 05 min"),
            (273600.0, "3 d 04 h"),
        ),
    ],
)
def test_seconds_as_people_read_them(value: float, said: str) -> None:
    assert seconds(value) == said


def test_only_all_of_it_is_100_percent() -> None:
    assert [percent(share) for share in (1.0, 0.99999, 0.9712, 0.0, None)] == [
        "100.0 %",
        "99.9 %",
        "97.1 %",
        "0.0 %",
        "-",
    ]


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ([Fault(90, kept=0), Fault(90, kept=0)], "180 steps were run again, 18.0 s: every generation began at step 1"),
        ([Fault(90, kept=40), Fault(90, kept=90)], "checkpoints twice as often"),
        ([Fault(50, kind="stall", silence_s=300.0)], "1 stall, each silent for about 300 s before it counted"),
        ([Fault(50, setup_s=8.0)], "8.1 s typically passed from the start of the ranks to their first step"),
        ([Fault(50, stopped_s=2.1)], "1 recovery took 2.1 s to stop the ranks"),
        ([Fault(50, reclaimed_s=9.0)], "until the GPUs were free"),
        ([Fault(50, rendezvous_s=4.0)], "to agree on the next generation"),
    ],
)
def test_advice_rests_on_what_was_lost(tmp_path: Path, faults: list[Fault], said: str) -> None:
    history = read_history(write_run(tmp_path / "run", EventLogWriter().run(faults, 200)))
    found = advice(history, account(history))
    assert any(said in sentence for sentence in found), found


def test_no_advice_where_nothing_was_lost(tmp_path: Path) -> None:
    history = read_history(write_run(tmp_path / "run", EventLogWriter().run([], 200)))
    assert advice(history, account(history)) == []


def two_nodes(folder: Path) -> list[Path]:
    """Rank 3, on the second node, is killed; the second node's clock and start differ."""
    runs = []
    for node, fault in enumerate(
        [Fault(50, kind="peer", reason="node b failed", local_rank=None), Fault(50, local_rank=1)]
    ):
        log = EventLogWriter(nodes=2, group_rank=node, at=5000.0 * node, started=5000.0 * node)
        runs.append(write_run(folder / f"n{node}", log.run([fault], 100), {"host": f"host{node}", "job": "together"}))
    return runs


def test_several_nodes_make_one_report(tmp_path: Path) -> None:
    job = put_together([read_history(run) for run in reversed(two_nodes(tmp_path))])
    (loss,) = job.account.losses
    assert (loss.cause, loss.incident.cause.rank, loss.incident.cause.host) == ("SIGKILL", 3, "host1")
    assert job.ranks == 4 and [node.history.host for node in job.nodes] == ["host0", "host1"]
    text = render_text(job)
    assert "rank 3 on host1" in text and "2-3" in text


def test_the_records_of_a_killed_agent_are_not_the_whole_story(tmp_path: Path) -> None:
    runs = []
    for node in range(2):
        log = EventLogWriter(nodes=2, group_rank=node)
        log.write("job_started")
        log.start(0)
        log.train(0, 1, 50, 0.5)
        if node == 1:
            log.fail(0, Fault(50, kind="lease", reason="node host0 is lost", local_rank=None), restart=False)
            log.finish(0, code=143)
        runs.append(write_run(tmp_path / f"n{node}", log.events, {"host": f"host{node}", "finished": node == 1}))
    job = put_together([read_history(run) for run in runs])
    assert (job.history.host, job.history.exit_code, list(job.history.incidents)) == ("host1", 143, [0])
    assert [node.history.host for node in job.nodes] == ["host0", "host1"]


def test_a_node_that_left_early_tells_less_than_those_that_went_on(tmp_path: Path) -> None:
    left, stayed = EventLogWriter(nodes=2, group_rank=0), EventLogWriter(nodes=2, group_rank=1)
    for log in (left, stayed):
        log.write("job_started")
        log.start(0)
        log.train(0, 1, 50, 0.5)
    left.finish(0, code=75)
    stayed.fail(0, Fault(50))
    stayed.launch(1, 0.02)
    runs = [write_run(tmp_path / name, log.events, {"host": name}) for name, log in (("a", left), ("b", stayed))]
    assert put_together([read_history(run) for run in runs]).history.host == "b"


def diagnosed(generation: int, rank: int) -> dict[str, object]:
    told = {"kind": "out_of_memory", "reason": "was OOM-killed by the kernel", "confidence": "likely"}
    return {"event": "diagnosed", "generation": generation, "rank": rank, "hint": "a smaller batch", **told}


def test_a_diagnosis_says_more_than_what_was_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = EventLogWriter().run([SIGKILL, SIGKILL], 200)
    for generation in (1, 0):
        index = max(
            i
            for i, event in enumerate(events)
            if event["event"] == "workers_stopped" and event["generation"] == generation
        )
        events.insert(index + 1, {**events[index], **diagnosed(generation, 1)})
    job = put_together([read_history(write_run(tmp_path / "run", events))])
    text, page = render_text(job), render_html(job, None)
    check(page)
    for shown in (text, page):
        assert "was OOM-killed by the kernel (likely)" in shown and "rank 1 on node0" in shown
        assert "out of memory (2 incidents): a smaller batch." in shown
    assert "was killed by SIGKILL" in page
    assert run_ftctl(tmp_path / "run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["incidents"][0]["diagnosis"]["kind"] == "out_of_memory"


def test_faults_of_a_drill_are_told_as_such_and_ask_for_no_advice(tmp_path: Path) -> None:
    """The fault was brought about on the second node; the report's numbers are the first one's."""
    runs = two_nodes(tmp_path)
    log = runs[1] / "events.jsonl"
    lines = log.read_text().splitlines()
    index = next(i for i, line in enumerate(lines) if '"failure_detected"' in line)
    told = {"event": "fault_injected", "generation": 0, "kind": "kill", "step": 50}
    log.write_text("\n".join([*lines[:index], json.dumps({**json.loads(lines[index]), **told}), *lines[index:]]) + "\n")
    job = put_together([read_history(run) for run in runs])
    text = render_text(job)
    assert "drill (kill at step 50): was killed by SIGKILL" in text
    assert advice(job.history, job.account) == []
    (loss,) = job.account.losses
    assert loss.drills == ("kill at step 50",)


def test_a_fault_that_could_not_be_carried_out_is_no_drill(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", EventLogWriter().run([SIGKILL], 200))
    log = run / "events.jsonl"
    lines = log.read_text().splitlines()
    index = next(i for i, line in enumerate(lines) if '"failure_detected"' in line)
    told = [
        {"event": name, "generation": 0, "kind": "oom", "step": None} for name in ("fault_injected", "fault_failed")
    ]
    drill = [json.dumps({**json.loads(lines[index]), **event}) for event in told]
    log.write_text("\n".join([*lines[:index], *drill, *lines[index:]]) + "\n")
    (loss,) = put_together([read_history(run)]).account.losses
    assert loss.drills == ()


def test_incidents_are_counted_by_rank_where_agents_share_a_host(tmp_path: Path) -> None:
    runs = two_nodes(tmp_path)
    for run in runs:
        facts = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**facts, "host": "same"}))
    table = node_table(put_together([read_history(run) for run in runs]))
    assert table.rows == (("same", "0-1", "2", "0"), ("same", "2-3", "2", "1"))


class Checker(HTMLParser):
    """Collects what a browser would load, and whether the elements are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action") and value:
                self.loads.append(value)
            if name == "id" and value:
                self.ids.append(value)
            if name.startswith("on"):
                self.wrong.append(name)
        if tag not in ("meta", "link", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "link", "br", "img"):
            self.open.pop()


def check(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.wrong == [] and checker.open == [] and checker.scripts == 0
    assert [load for load in checker.loads if not load.startswith(("#", "data:"))] == []
    assert len(checker.ids) == len(set(checker.ids))
    assert "url(http" not in page and "@import" not in page
    return checker


def job_of(folder: Path, *faults: Fault) -> Job:
    return put_together([read_history(write_run(folder, EventLogWriter().run(faults, 200)))])


def test_the_page_needs_nothing_and_believes_nothing(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "<run>", EventLogWriter().run([SIGKILL, RAISED], 200), {"command": ["<b>x</b>.py", "\x1b[2J"]}
    )
    page = render_html(put_together([read_history(run)]), None)
    check(page)
    assert NO_PICTURES.replace("'", "&#x27;") in page
    assert "<script>" not in page and "<b>x" not in page and "\x1b" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "prefers-color-scheme: dark" in page


def test_pictures_take_the_colours_of_the_page(tmp_path: Path, draw: Draw) -> None:
    pictures = draw(job_of(tmp_path / "run", SIGKILL, RAISED))
    assert set(pictures) == {"timeline", "steps", "recoveries", "causes"}
    page = render_html(job_of(tmp_path / "run", SIGKILL, RAISED), pictures)
    check(page)
    assert ">5 s<" in pictures["timeline"] and ">0<" in pictures["timeline"]
    for picture in pictures.values():
        assert "var(--ink)" in picture and "#0a0b0c" not in picture


def test_a_run_without_anything_to_draw(tmp_path: Path, draw: Draw) -> None:
    job = put_together([read_history(write_run(tmp_path / "run", []))])
    assert draw(job) == {}
    check(render_html(job, {}))
    assert "no restart" in render_text(job)


def test_a_thousand_ranks_and_many_incidents_stay_small(tmp_path: Path, draw: Draw) -> None:
    faults = [Fault(10, local_rank=(37 * number) % 1000, kept=10 * number) for number in range(200)]
    log = EventLogWriter(nproc=1000)
    job = put_together([read_history(write_run(tmp_path / "run", log.run(faults, 2010)))])
    pictures = draw(job)
    page = render_html(job, pictures)
    check(page)
    assert job.ranks == 1000 and page.count("<details") == 200
    assert len(page) < 1_500_000
    assert max(map(len, render_text(job).splitlines())) < 240


# -- the command -----------------------------------------------------------------------------------------------------


def run_ftctl(*args: str | Path) -> int:
    return ftctl.run(["report", *map(str, args)])


def test_the_command_writes_the_page_into_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], draw: Draw
) -> None:
    run = write_run(tmp_path / "run", EventLogWriter().run([SIGKILL], 200))
    assert run_ftctl(run) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("ran ") and said[1] == str(run / "report.html")
    page = (run / "report.html").read_text()
    check(page)
    assert run_ftctl(run, "--html", "-") == 0
    assert capsys.readouterr().out == page


def test_the_command_prints_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", EventLogWriter().run([SIGKILL, RAISED], 200))
    assert run_ftctl(run, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["steps"], told["restarts"], told["exit_code"]) == (200, 2, 0)
    assert 0 < told["training_goodput"] <= told["infrastructure_goodput"] < 1
    assert [incident["cause"] for incident in told["incidents"]] == ["SIGKILL", "exception"]
    assert list(told["incidents"][0]["phases_s"])[-1] == "training_resumed"
    assert sum(told["time_s"].values()) == pytest.approx(told["wall_s"], abs=1e-4)
    assert not (run / "report.html").exists()


def test_the_command_prints_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", EventLogWriter().run([SIGKILL], 200))
    assert run_ftctl(run, "--text") == 0
    text = capsys.readouterr().out
    assert "lost by cause" in text and "rank 0 on node0" in text and not (run / "report.html").exists()


def test_without_matplotlib_there_is_a_page_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "ftlaunch.launcher.history.pictures", raising=False)
    run = write_run(tmp_path / "run", EventLogWriter().run([SIGKILL], 200))
    assert run_ftctl(run) == 0
    assert capsys.readouterr().err == NO_PICTURES + "\n"
    page = (run / "report.html").read_text()
    check(page)
    assert "<svg" not in page and "pip install" in page


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str], draw: Draw) -> None:
    run = write_run(tmp_path / "run", EventLogWriter().run([], 20))
    assert run_ftctl(run, "--text", "--json") == 2
    assert "exclude each other" in capsys.readouterr().err
    assert run_ftctl(run, "--html", tmp_path / "no" / "such" / "place.html") == 1
    assert "name another place with --html" in capsys.readouterr().err
    (run / "events.jsonl").unlink()
    assert run_ftctl(run, "--text") == 1
    assert capsys.readouterr().err.startswith("error: cannot read the events of ")
