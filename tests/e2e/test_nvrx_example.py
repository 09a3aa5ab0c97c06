"""NVIDIA's own heartbeat example, its client calls replaced by ours, recovers from the faults that it simulates.

The example is not ours and not here. To run this, put ``train_ddp_heartbeats_api.py``, ``dist_utils.py`` and
``log_utils.py`` of nvidia-resiliency-ext (``examples/fault_tolerance``, as of 0.4.1) into a folder, and name it in
``NVRX_EXAMPLES``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from support.jobs import Launcher

FOLDER = Path(os.environ.get("NVRX_EXAMPLES", ""))
NAME = "train_ddp_heartbeats_api.py"
EPOCHS, STEPS = 3, 1000
SIZES = ("--hidden", "64", "--batch", "8", "--train_dataset_size", str(STEPS * 8 * 2), "--val_dataset_size", "64")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif("NVRX_EXAMPLES" not in os.environ, reason="needs NVIDIA's examples, see NVRX_EXAMPLES above"),
]

REPLACEMENTS = (
    (r"^import nvidia_resiliency_ext\.fault_tolerance.*$", "from ftlaunch import heartbeat"),
    # Limits are learnt without a call; there is nothing to wait for before a fault may come.
    (r"^ *if ft_client\.hb_timeouts.*\n(?: *#.*\n)*.*\.calculate_and_set_hb_timeouts\(\)\n", ""),
    (r" and ft_client\.hb_timeouts\.are_valid", ""),
    # In training with a number that only grows, in validation without one.
    (
        r"ft_client\.send_heartbeat\(\)(?=\n *optimizer\.)",
        "heartbeat.beat(epoch_idx * len(dataloader) + iter_idx)",
    ),
    (r"ft_client\.send_heartbeat\(\)", "heartbeat.beat()"),
    # There is no client: none to make, to end, to hand on, or to save in a checkpoint.
    (r"\bft_client, ", ""),
    (r"^.*\bft_client\b.*\n", ""),
)


def adapted() -> str:
    text = (FOLDER / NAME).read_text()
    for pattern, ours in REPLACEMENTS:
        text, count = re.subn(pattern, ours, text, flags=re.MULTILINE)
        assert count, f"not in this version of the example: {pattern}"
    return text


def test_it_takes_no_more_lines_and_nothing_of_the_other_client() -> None:
    ours, theirs = adapted(), (FOLDER / NAME).read_text()
    print(f"{len(theirs.splitlines())} lines before, {len(ours.splitlines())} after")
    assert len(ours.splitlines()) <= len(theirs.splitlines())
    assert not re.search(r"nvidia_resiliency_ext|fault_tolerance\.|ft_client", ours)


@pytest.mark.parametrize(("fault", "kind"), [("rank_killed", "signal"), ("rank_hung", "stall")])
def test_every_simulated_fault_is_recovered_from(ftlaunch: Launcher, tmp_path: Path, fault: str, kind: str) -> None:
    """In each generation the script arms a fault after its first epoch, up to 4 s ahead, so each makes progress."""
    (tmp_path / NAME).write_text(adapted())
    for name in ("dist_utils.py", "log_utils.py"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    job = ftlaunch(
        *("--nproc-per-node", "2", "--hang-floor", "3", tmp_path / NAME, "--device", "cpu", *SIZES),
        *("--epochs", str(EPOCHS), "--logging_interval", "100", "--output_dir", tmp_path / "out"),
        *("--simulated_fault", f"{fault},0"),
    )
    assert job.wait(360) == 0, job.err[-3000:]
    struck = [int(rank) for rank in re.findall(rf"Simulating fault: {fault}; rank to fail: (\d+)", job.err)]
    print(f"{fault} of ranks {struck}")
    assert struck
    assert [(event["kind"], event["rank"]) for event in job.events("failure_detected")] == [
        (kind, rank) for rank in struck
    ]
    assert len(job.events("training_resumed")) == len(struck) + 1
    assert (EPOCHS - 1) * STEPS < job.events("progress")[-1]["step"] < EPOCHS * STEPS
