"""Reports of output that was lost, mixed up or overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.jobs import Launcher
from support.scripts import TWO, write


def test_L1_bytes_that_are_no_text_stop_nothing(ftlaunch: Launcher, tmp_path: Path) -> None:
    """The euro sign comes in two halves, with the second one after a pause long enough for a read of its own."""
    body = r"""
out = sys.stdout.buffer
out.write(b"bad \xff byte\nhalf \xe2\x82"); out.flush()
time.sleep(0.2)
out.write(b"\xac end\n"); out.flush()
for number in range(3): say("line", number)
"""
    job = ftlaunch(write(tmp_path, body))
    assert job.wait() == 0
    raw = b"bad \xff byte\nhalf \xe2\x82\xac end\nline 0\nline 1\nline 2\n"
    assert (job.home / "stdout").read_bytes() == b"".join(b"[default0]:" + line for line in raw.splitlines(True))
    assert job.run_dir is not None and (job.run_dir / "logs/0/0.out").read_bytes() == raw


@pytest.mark.parametrize("how", ["script", "module", "binary"])
def test_L3_the_last_words_before_a_sigkill_are_kept(ftlaunch: Launcher, tmp_path: Path, how: str) -> None:
    """Python buffers blocks into a pipe: ranks are started without, however they are started."""
    write(tmp_path, "print('step 1')\nos.kill(os.getpid(), 9)")
    (tmp_path / "run.sh").write_text(f"#!/bin/sh\nexec python3 {tmp_path / 'train.py'}\n")
    (tmp_path / "run.sh").chmod(0o755)
    command = {"script": ["train.py"], "module": ["-m", "train"], "binary": ["--no-python", "./run.sh"]}[how]
    job = ftlaunch("--max-restarts", "0", *command, cwd=tmp_path)
    assert job.wait() == 137
    assert job.out == "[default0]:step 1\n"


def test_L3_the_users_own_buffering_is_respected(ftlaunch: Launcher, tmp_path: Path) -> None:
    job = ftlaunch(write(tmp_path, "say(os.environ['PYTHONUNBUFFERED'])"), env={"PYTHONUNBUFFERED": "0"})
    assert job.wait() == 0 and job.out == "[default0]:0\n"


def test_L5_no_attempt_overwrites_the_logs_of_another(ftlaunch: Launcher, tmp_path: Path) -> None:
    """Nor does a second start with the same --log-dir; the failure report says where they are."""
    body = "say('generation', GEN)\nif GEN < 1: os.kill(os.getpid(), 9)\nos._exit(4)"
    logs = tmp_path / "logs"
    for start in range(1, 3):
        job = ftlaunch(*TWO, "--max-restarts", "1", "--log-dir", logs, "--redirects", "1", write(tmp_path, body))
        assert job.wait(30) == 4
        attempts = sorted(logs.glob("*/attempt_*"))
        assert len(attempts) == 2 * start
        last = next(line for line in job.err.splitlines() if line.startswith("logs  "))
        assert Path(last.split(":", 1)[1].strip()) in attempts
        texts = [path.read_text() for path in logs.glob("*/attempt_*/*/stdout.log")]
        assert len(texts) == 4 * start and set(texts) <= {"generation 0\n", "generation 1\n", ""}
