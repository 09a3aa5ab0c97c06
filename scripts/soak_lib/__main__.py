"""Command line of the soak."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from ftlaunch.launcher.wording import columns
from soak_lib.plan import Strike, describe, draw
from soak_lib.run import Soak
from soak_lib.watch import Check
from support.etcd import find_binary

_SEEDS = 1_000_000


class Interrupted(BaseException):
    """We were told to end. Goes through everything that clears up."""


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/soak",
        description="Train on two nodes with an etcd of three members, let everything go wrong at random moments, and "
        "see whether what must hold does. Ends with 0 if so, with 1 if not, with 2 for a wrong command line.",
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long things go wrong (default 10)")
    parser.add_argument("--seed", type=int, help="the same faults at the same moments again (default: drawn)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="keep all records there, else only if something is wrong"
    )
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON; what happens goes to stderr")
    parser.add_argument("--plan", action="store_true", help="only print what would go wrong, and when")
    args = parser.parse_args(argv)
    if not 0.1 <= args.minutes <= 24 * 60:
        parser.error(f"--minutes {args.minutes:g}: from 0.1 to {24 * 60}")
    if args.out is not None and args.out.exists() and any(args.out.iterdir()):
        parser.error(f"--out {args.out} is not empty: name a new directory")
    if find_binary() is None:
        parser.error("an etcd binary is needed: install etcd, or name it with ETCD_BINARY")
    return args


def main(argv: Sequence[str]) -> int:
    """Run the soak, print the verdict."""
    args = parse_args(argv)
    seed = random.randrange(_SEEDS) if args.seed is None else args.seed
    plan = draw(seed, args.minutes * 60)
    _tell(f"seed {seed}: at most {len(plan)} faults; the same plan: --seed {seed} --minutes {args.minutes:g}")
    for line in describe(plan):
        _tell(f"  {line}")
    if args.plan:
        return 0
    out = args.out or Path(tempfile.mkdtemp(prefix="ftlaunch-soak-"))
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    soak = Soak(plan, args.minutes * 60, out.resolve(), _tell)
    keep = True
    try:
        with _interruptible():
            checks = soak.run()
        keep = not all(check.ok for check in checks)
        print(json.dumps(_as_json(seed, args.minutes, soak, checks), indent=2) if args.json else _table(checks, seed))
        return int(keep)
    except Interrupted as interrupt:
        _tell("interrupted: everything that the soak had started was ended")
        return 128 + int(interrupt.args[0])
    finally:
        if keep or args.out is not None:
            _tell(f"records: {out}")
        else:
            shutil.rmtree(out, ignore_errors=True)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    def interrupt(signum: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(signum)

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _table(checks: Sequence[Check], seed: int) -> str:
    rows = [("INVARIANT", "LOOKED AT", "RESULT")]
    rows += [(check.name, check.seen, "ok" if check.ok else "VIOLATED") for check in checks]
    wrong = [f"{check.name}: {violation}" for check in checks for violation in check.violations]
    verdict = f"{'FAILED' if wrong else 'passed'} (seed {seed})"
    return "\n".join([*columns(rows), "", *wrong, verdict])


def _as_json(seed: int, minutes: float, soak: Soak, checks: Sequence[Check]) -> dict[str, Any]:
    return {
        "ok": all(check.ok for check in checks),
        "seed": seed,
        "minutes": minutes,
        "checks": [{**asdict(check), "ok": check.ok} for check in checks],
        "faults": [{**_plain(strike), "done_s": round(at_s, 3), "hit": what} for at_s, strike, what in soak.done],
    }


def _plain(strike: Strike) -> dict[str, Any]:
    return {**asdict(strike), "deed": strike.deed.value}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
