"""Command line of the bench: choose items, take samples in turn, print the table, draw the picture."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from bench_lib import contenders as who
from bench_lib.contenders import ROOT, Contender
from bench_lib.items import ITEMS, Item, sampler
from bench_lib.report import markdown
from bench_lib.results import Results, Sample, lines, load, machine
from bench_lib.runner import Failed
from bench_lib.settings import QUICK, Settings


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure ftlaunch beside torchrun and NVIDIA's ft_launcher 0.4.1 on this machine.",
        epilog="Items: " + "; ".join(f"{item.letter} {item.title}" for item in ITEMS),
    )
    letters = "".join(item.letter for item in ITEMS)
    parser.add_argument("--only", default=letters, metavar="LETTERS", help=f"items to measure (default {letters})")
    parser.add_argument("--without", default="", metavar="NAMES", help="contenders to leave out, comma-separated")
    parser.add_argument("--repeat", type=int, help="samples per contender (default: the item's own, 1 to 5)")
    parser.add_argument("--quick", action="store_true", help="one short sample each: to try the bench, not to quote")
    parser.add_argument("--resume", action="store_true", help="keep the samples that are in the output already")
    parser.add_argument("--revision", default="", help="commit of ftlaunch to measure (default: the tree as it is)")
    parser.add_argument("--backoff-scale", type=float, default=0.1, help="for container restarts in h (default 0.1)")
    parser.add_argument("--output", type=Path, help="default bench/results.json, with --quick .bench/quick.json")
    parser.add_argument("--picture", type=Path, help="default docs/bench.svg, with --quick .bench/quick.svg")
    parser.add_argument("--report", action="store_true", help="measure nothing: tables and pictures of the output")
    args = parser.parse_args(argv)
    unknown = set(args.only) - set(letters)
    if unknown:
        parser.error(f"--only: no item {', '.join(sorted(unknown))}; there are {letters}")
    quick = ROOT / ".bench" / "quick.json"
    args.output = args.output or (quick if args.quick else ROOT / "bench" / "results.json")
    args.picture = args.picture or (quick.with_suffix(".svg") if args.quick else ROOT / "docs" / "bench.svg")
    return args


def measure(items: Sequence[Item], args: argparse.Namespace, settings: Settings, results: Results) -> None:
    """Take the samples: the contenders of an item in turn, the order reversed every other time."""
    left_out = set(filter(None, args.without.split(",")))
    for item in items:
        missing = item.missing()
        if missing:
            print(f"({item.letter}) left out: {missing}", flush=True)
            continue
        chosen = [contender for contender in item.contenders if contender.name not in left_out]
        for repetition in range(repeats(item, args)):
            for contender in chosen[:: 1 if repetition % 2 == 0 else -1]:
                if not results.has(item.letter, contender.name, repetition):
                    results.add(take(item, contender, repetition, settings))


def repeats(item: Item, args: argparse.Namespace) -> int:
    """Return how many samples of each contender are wanted."""
    return int(args.repeat or (1 if args.quick else item.repeats))


def estimate(items: Sequence[Item], args: argparse.Namespace) -> str:
    """Return how long all of it takes on two cores, with all contenders and nothing measured yet."""
    minutes = {item.letter: repeats(item, args) * item.seconds / 60 for item in items}
    each = ", ".join(f"{letter} {value:.1f}" for letter, value in minutes.items())
    return f"about {sum(minutes.values()):.0f} minutes ({each})"


def take(item: Item, contender: Contender, repetition: int, settings: Settings) -> Sample:
    """Take one sample; a failure becomes part of it."""
    print(f"({item.letter}) {contender.name} #{repetition + 1}: ", end="", flush=True)
    try:
        figures = sampler(item, contender)(contender, settings)
    except (Failed, AssertionError, OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
        print(f"failed: {error}", flush=True)
        return Sample(item.letter, contender.name, repetition, {}, f"{type(error).__name__}: {error}"[:400])
    print(f"{figures[item.key]:.4g} {item.unit}", flush=True)
    return Sample(item.letter, contender.name, repetition, figures)


def main(argv: Sequence[str]) -> int:
    """Measure what is asked for; 1 when a sample failed."""
    args = parse_args(argv)
    items = [item for item in ITEMS if item.letter in args.only]
    settings = replace(QUICK if args.quick else Settings(), backoff_scale=args.backoff_scale)
    about: dict[str, object] = {}
    if not args.report:
        venvs = {contender.venv for item in items for contender in item.contenders}
        who.prepare(venvs, args.revision)
        who.warm_up(venvs)
        about = {
            **machine(),
            "settings": {**asdict(settings), "quick": args.quick},
            "versions": _versions(venvs, args.revision),
        }
    results = load(args.output, about)
    if not args.report:
        if not args.resume:
            results.forget(args.only)
        print(estimate(items, args), flush=True)
        measure(items, args, settings, results)
    print("\n" + "\n".join(lines(results, items)))
    args.output.with_suffix(".md").write_text(markdown(results))
    who.prepare(["picture"])
    script = Path(__file__).with_name("picture.py")
    subprocess.run([who.python("picture"), script, args.output, args.picture], check=True)
    return int(any(sample.error for sample in results.samples if sample.item in args.only))


def _versions(venvs: set[str], revision: str) -> dict[str, str]:
    found = {
        "ftlaunch": _commit(revision),
        "torch": who.version("ftlaunch", "torch") if "ftlaunch" in venvs else who.TORCH,
    }
    if "nvrx" in venvs:
        found["nvidia-resiliency-ext"] = who.version("nvrx", "nvidia-resiliency-ext")
    return found


def _commit(revision: str) -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", revision or "--dirty"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
