"""Little training scripts: what all of them begin with, and where they are written to."""

from __future__ import annotations

from pathlib import Path

from support.jobs import Job
from support.waiting import wait_until

HEAD = """
import os, signal, subprocess, sys, threading, time
RANK, GEN = int(os.environ["RANK"]), int(os.environ["FTLAUNCH_GENERATION"])
def say(*words): print(*words, flush=True)
"""
BEATING = """
from ftlaunch import heartbeat as hb
def steps(first, last, pause=0.01):
    for step in range(first, last):
        time.sleep(pause)
        hb.beat(step)
"""
TWO = ("--nproc-per-node", "2")


def write(folder: Path, body: str, name: str = "train.py") -> Path:
    """Write ``body`` below :data:`HEAD` and return the script."""
    path = folder / name
    path.write_text(HEAD + body)
    return path


def wait_for_ready(job: Job, ranks: int = 2, word: str = "ready") -> None:
    """Wait until ``ranks`` lines have said ``word``; fail as soon as the job has ended without."""

    def said() -> bool:
        ended = job.process.poll() is not None
        count = job.out.count(word)
        assert count >= ranks or not ended, f"ended with {job.process.returncode}; stderr:\n{job.err[-3000:]}"
        return count >= ranks

    wait_until(said, 30, f"{ranks} times {word!r}")
