"""A training loop without torch, to try drills with: steps that take time, a checkpoint, and resuming from it.

    ftctl drill run --nproc-per-node 2 --faults examples/drill/plan.yaml examples/drill/train_tiny.py --save-in "{out}"

Every rank counts for itself and saves for itself.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from ftlaunch import heartbeat


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save-in", type=Path, required=True, help="directory for checkpoints")
    parser.add_argument("--steps", type=int, default=300, help="steps in all (default 300)")
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints (default 10)")
    parser.add_argument("--step-s", type=float, default=0.02, help="what a step takes, in seconds (default 0.02)")
    return parser.parse_args()


def save(path: Path, step: int) -> None:
    """Write beside the final place and move there: a crash leaves the old checkpoint or the new one, never half."""
    part = path.with_suffix(".part")
    part.write_text(str(step))
    os.replace(part, path)
    heartbeat.checkpoint_saved(step, path)


def main() -> None:
    """Train to the last step."""
    args = parse_args()
    args.save_in.mkdir(parents=True, exist_ok=True)
    checkpoint = args.save_in / f"rank-{os.environ.get('RANK', '0')}"
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    while step < args.steps:
        time.sleep(args.step_s)
        step += 1
        heartbeat.beat(step)
        if step % args.save_every == 0 or step == args.steps:
            save(checkpoint, step)


if __name__ == "__main__":
    main()
