"""Any directory of checkpoints: what is in it is judged, never trusted, and a scan ends with a view of it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftlaunch.launcher.checkpoints.choose import choose
from ftlaunch.launcher.checkpoints.model import View
from ftlaunch.launcher.checkpoints.scan import scan
from support import checkpoint_files as made

KNOWN = """
    step_1.pt step_2.pt checkpoint-5 epoch=1-step=7.ckpt iter_0000003 latest last.ckpt .metadata weights common.pt
    latest_checkpointed_iteration.txt model.safetensors model.safetensors.index.json trainer_state.json metadata.json
    rank_0.distcp __0_0.distcp step_99999999999999999999 a\udcff
"""
NAMES = st.sampled_from(KNOWN.split()) | st.text(
    st.characters(exclude_characters="\0/", codec="utf-8"), min_size=1, max_size=8
).filter(lambda name: name not in (".", "..") and len(os.fsencode(name)) < 200)
GOOD = (made.torch_bytes(), made.safetensors_bytes(), made.dcp_metadata({"__0_0.distcp": 100}), b'{"weight_map": {}}')
CONTENTS = (
    st.binary(max_size=64)
    | st.sampled_from([*GOOD, b"", b"7", b"release", b"\xff" * 8, b"[" * 10_000, b'{"a":' * 9999, b"9" * 5000])
    | st.builds(
        lambda good, at, byte: good[:at] + byte + good[at + 1 :],
        st.sampled_from(GOOD),
        st.integers(0, 400),
        st.binary(max_size=3),
    )
    | st.builds(lambda good, keep: good[:keep], st.sampled_from(GOOD), st.integers(0, 400))
)
ODD_LINKS = st.sampled_from([".", "..", "nowhere", "/dev/zero", "/proc/self/mem", "x" * 255])
TREE = st.recursive(
    CONTENTS | ODD_LINKS, lambda inner: st.dictionaries(NAMES, inner, max_size=4), max_leaves=10
).filter(lambda tree: isinstance(tree, dict))


@pytest.fixture(scope="module")
def room() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def plant(path: Path, tree: Any) -> None:
    if isinstance(tree, dict):
        path.mkdir()
        for name, inner in tree.items():
            plant(path / name, inner)
    elif isinstance(tree, str):
        path.symlink_to(tree)
    else:
        path.write_bytes(tree)


def require_sound(view: View) -> None:
    """It can be sent, read, chosen from and told of."""
    again = View.from_offer(json.loads(json.dumps(view.as_offer())))
    for shared in (True, False):
        choice = choose([view, again], shared)
        choice.reason.encode()
        assert "\n" not in choice.reason
    assert all("\n" not in one.reason for one in view.skipped)
    assert all(os.path.exists(found.path) for found in view.complete)


@settings(max_examples=200, deadline=None)
@given(tree=TREE)
def test_any_tree_gives_a_view(room: Path, tree: Any) -> None:
    place = room / "checkpoints"
    plant(place, tree)
    try:
        require_sound(scan(str(place)))
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize("make", [made.dcp, made.torch_file], ids=lambda make: make.__name__)
@settings(max_examples=100, deadline=None)
@given(position=st.floats(0, 1, exclude_max=True), byte=st.binary(max_size=2), which=st.integers(0, 9))
def test_any_damage_to_a_checkpoint_is_survived(
    room: Path, make: Callable[[Path], Path], position: float, byte: bytes, which: int
) -> None:
    place = room / "damaged"
    place.mkdir()
    try:
        path = make(place / "step_5")
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        victim = files[which % len(files)]
        data, at = victim.read_bytes(), int(position * victim.stat().st_size)
        victim.write_bytes(data[:at] + byte + data[at + 1 :])
        require_sound(scan(str(place)))
    finally:
        shutil.rmtree(place)


ODD_OFFERS = [None, 7, "x", [], [[]], {}, [["a"]], [[None, 1, 2]], [["\ud800", 10**30, "x"]], "x" * 10**5, float("nan")]


@pytest.mark.parametrize("odd", ODD_OFFERS, ids=range(len(ODD_OFFERS)))
def test_what_another_node_offers_is_refused_or_can_be_chosen_from(tmp_path: Path, odd: object) -> None:
    made.torch_file(tmp_path / "step_1.pt")
    offer = scan(str(tmp_path)).as_offer()
    for name in offer:
        try:
            view = View.from_offer({**offer, name: odd})
        except ValueError:
            continue
        choose([view, View.from_offer(offer)], True).reason.encode()
