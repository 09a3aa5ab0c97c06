"""How the bench runs things: with a limit, in private directories, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench_lib import measure, scale
from bench_lib.runner import Failed, start
from bench_lib.settings import QUICK
from support import procfs
from support.waiting import wait_until


def test_a_run_that_takes_too_long_is_killed_with_all_that_it_started() -> None:
    script = "setsid sleep 600 >/dev/null 2>&1 & echo an Error: of mine; echo $PYTHONPATH $TMPDIR; sleep 600"
    with start(["sh", "-c", script], {}) as job:
        with pytest.raises(Failed, match=r"not done after 0\.5 s: an Error: of mine"):
            job.finish(0.5)
        folder = job.folder
        assert str(folder) in (folder / "log").read_text()
        assert len(procfs.carrying(job.marker)) >= 2
    assert not procfs.carrying(job.marker) and not folder.exists()


def test_a_run_with_another_code_than_0_has_failed() -> None:
    with start(["sh", "-c", "exit 3"], {}) as job, pytest.raises(Failed, match="exit code 3"):
        job.finish(30)


def test_launchers_side_is_everything_but_the_ranks_and_what_they_started() -> None:
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); p.wait()"
    with start([sys.executable, "-c", code], {}) as agent:
        (rank,) = wait_until(lambda: procfs.children(agent.process.pid))
        wait_until(lambda: len(procfs.carrying(agent.marker)) == 2)
        assert measure.launcher_side(agent, ()) == {agent.process.pid, rank}
        assert measure.launcher_side(agent, (rank,)) == {agent.process.pid}
        use = measure.use_of(agent, (rank,), 0.05)
        assert use.processes == 1 and use.pss_mb > 1


def test_the_bench_shows_its_help_without_installing_anything() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench_lib", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0 and "--only" in done.stdout


@pytest.mark.skipif(bool(scale.missing()), reason=scale.missing() or "etcd is there")
def test_what_agreeing_costs_a_node_does_not_grow_with_their_number() -> None:
    found = {size: scale.agree(scale.crowd(size, sys.executable), QUICK) for size in (10, 30)}
    for size, figures in found.items():
        # Each asks once; one failure and one table are for all. What a slow machine repeats comes on top.
        assert size + 2 <= figures["reform_writes"] < 2 * size
    for figure in ("form_messages_per_agent", "reform_messages_per_agent"):
        # If each agent heard of each other one, there would be more than twice as many.
        assert found[30][figure] < 1.5 * found[10][figure]
