"""Which checkpoints of a directory are complete, and why the others are not."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ftlaunch.launcher.checkpoints import dcp as dcp_format
from ftlaunch.launcher.checkpoints import scan as scan_module
from ftlaunch.launcher.checkpoints.custom import Pattern, Validator
from ftlaunch.launcher.checkpoints.model import View
from ftlaunch.launcher.checkpoints.scan import Request, scan
from support import checkpoint_files as files


def look(root: Path, **request: object) -> View:
    return scan(str(root), Request(**request))  # type: ignore[arg-type]


def complete(view: View) -> list[str]:
    return [os.path.basename(found.path) for found in view.complete]


def steps(view: View) -> list[int | None]:
    return [found.step for found in view.complete]


def reason(view: View, name: str) -> str:
    found = [one.reason for one in view.skipped if os.path.basename(one.path) == name]
    assert found, f"{name} is not among the skipped: {view.skipped}"
    return found[0]


def tree(root: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            info = os.lstat(os.path.join(folder, name))
            found[os.path.join(folder, name)] = (info.st_mtime_ns, info.st_size, info.st_ino)
    return found


# --- what every format shares -----------------------------------------------------------------------------------


def test_newest_by_number_not_by_text_or_age(tmp_path: Path) -> None:
    for step in (1000, 999, 20):
        files.dcp(tmp_path / f"step_{step}")
    assert steps(look(tmp_path)) == [1000, 999, 20]


def test_the_reported_case(tmp_path: Path) -> None:
    files.dcp(tmp_path / "step_9")
    files.dcp(tmp_path / "step_10")
    files.dcp(tmp_path / "step_11")
    os.truncate(tmp_path / "step_11" / "__1_0.distcp", 0)
    files.dcp(tmp_path / "tmp_12")
    view = look(tmp_path)
    assert complete(view) == ["step_10", "step_9"]
    assert reason(view, "step_11") == "shard __1_0.distcp has 0 bytes of 100"
    assert "temporary name" in reason(view, "tmp_12")


def test_missing_directory_is_the_normal_first_start(tmp_path: Path) -> None:
    view = look(tmp_path / "nothing")
    assert view.missing
    assert view.error is None
    assert view.complete == ()


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "Not a directory" in (look(tmp_path / "file").error or "")


def test_nothing_is_changed_or_deleted(tmp_path: Path) -> None:
    files.dcp(tmp_path / "step_1")
    files.dcp(tmp_path / "step_2")
    files.cut(tmp_path / "step_2" / ".metadata")
    files.hf(tmp_path, 3)
    files.torch_file(tmp_path / "ckpt_4.pt")
    files.cut(tmp_path / "ckpt_4.pt")
    (tmp_path / "tmp_5").mkdir()
    before = tree(tmp_path)
    look(tmp_path)
    assert tree(tmp_path) == before


def test_unrelated_entries_are_not_talked_about(tmp_path: Path) -> None:
    files.dcp(tmp_path / "step_1")
    (tmp_path / "logs").mkdir()
    (tmp_path / "config.yaml").write_text("lr: 0.1")
    (tmp_path / "events.out.tfevents.1700000000.host.123.0").write_bytes(b"x")
    (tmp_path / ".cache").mkdir()
    view = look(tmp_path)
    assert complete(view) == ["step_1"]
    assert view.skipped == ()


def test_empty_numbered_directory_and_foreign_content_are_named(tmp_path: Path) -> None:
    (tmp_path / "step_5").mkdir()
    (tmp_path / "step_6").mkdir()
    (tmp_path / "step_6" / "notes.txt").write_text("x")
    view = look(tmp_path)
    assert view.complete == ()
    assert reason(view, "step_5") == "an empty directory"
    assert "nothing of a known format" in reason(view, "step_6")


def test_symbolic_links(tmp_path: Path) -> None:
    files.dcp(tmp_path / "step_10")
    files.dcp(tmp_path / "elsewhere" / "saved")
    (tmp_path / "latest").symlink_to("step_10")
    (tmp_path / "step_11").symlink_to(tmp_path / "elsewhere" / "saved")
    (tmp_path / "step_12").symlink_to("gone")
    (tmp_path / "step_13").symlink_to("step_13")
    (tmp_path / "step_14").symlink_to(".")
    view = look(tmp_path)
    assert complete(view) == ["step_11", "step_10"], "the link named latest is no second checkpoint"
    assert "is missing" in reason(view, "step_12")
    assert "leads to itself" in reason(view, "step_13")
    assert any(one.path.endswith("step_14") for one in view.skipped)


def test_link_loop_inside_a_checkpoint_ends(tmp_path: Path) -> None:
    files.torch_file(tmp_path / "step_1" / "rank0.pt")
    (tmp_path / "step_1" / "again").symlink_to("..")
    (tmp_path / "step_1" / "deeper").mkdir()
    (tmp_path / "step_1" / "deeper" / "again").symlink_to("../..")
    assert complete(look(tmp_path)) == ["step_1"]


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    os.mkdir(os.path.join(root, b"step_1"))
    bad = Path(os.fsdecode(os.path.join(root, b"run\xff_step_7")))
    files.dcp(bad)
    view = look(tmp_path)
    assert steps(view) == [7]
    sent = json.loads(json.dumps(view.as_offer(), ensure_ascii=False).encode())
    assert View.from_offer(sent).complete == view.complete
    assert view.complete[0].path == str(bad)


@pytest.mark.parametrize("place", ["step_2", "step_2/.metadata", "checkpoint-3/trainer_state.json"])
def test_pipes_are_not_waited_for(tmp_path: Path, place: str) -> None:
    files.dcp(tmp_path / "step_1")
    (tmp_path / place).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / place)
    view = look(tmp_path)
    assert complete(view) == ["step_1"]
    assert "file" in reason(view, place.split("/")[0])


def test_vanishing_while_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2, 3):
        files.dcp(tmp_path / f"step_{step}")
    listing = scan_module.list_kinds

    def list_then_rotate(path: str, limit: int) -> tuple[frozenset[str], frozenset[str]]:
        names = listing(path, limit)
        shutil.rmtree(tmp_path / "step_3")
        (tmp_path / "step_2" / "__0_0.distcp").unlink()
        return names

    monkeypatch.setattr(scan_module, "list_kinds", list_then_rotate)
    view = look(tmp_path)
    assert complete(view) == ["step_1"]
    assert "is missing" in reason(view, "step_3")


def test_work_is_bounded_in_a_huge_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = files.dcp(tmp_path / "step_100000")
    names = [f"step_{number}" for number in range(100_000)] + [real.name, *(f"log_{n}.txt" for n in range(1000))]
    looked: list[str] = []
    original = scan_module.look
    monkeypatch.setattr(scan_module, "list_kinds", lambda _path, _limit: (frozenset(names), frozenset()))
    monkeypatch.setattr(scan_module, "look", lambda path: looked.append(path) or original(path))  # type: ignore[func-returns-value]
    view = look(tmp_path)
    assert complete(view) == ["step_100000"]
    assert len(looked) <= scan_module.MAX_EXAMINED + scan_module.MAX_UNNUMBERED + 1
    assert len(view.skipped) <= scan_module.MAX_SKIPPED + 1
    assert "more entries were skipped" in view.skipped[-1].reason


def test_foreign_files_in_any_number_hide_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "MAX_EXAMINED", 20)
    for number in range(300):
        (tmp_path / f"step_{number + 10}.log").touch()
        (tmp_path / f"step_{number + 10}.pt.tmp").touch()
    files.dcp(tmp_path / "step_1")
    view = look(tmp_path)
    assert steps(view) == [1]
    assert view.skipped[-1].reason == "200 more entries were skipped"


def test_enough_complete_ones_end_the_scan(tmp_path: Path) -> None:
    for step in range(10):
        files.dcp(tmp_path / f"step_{step}")
    assert steps(look(tmp_path, wanted=3)) == [9, 8, 7]


def test_deadline_keeps_what_was_found(tmp_path: Path) -> None:
    for step in range(5):
        files.dcp(tmp_path / f"step_{step}")
    answers = iter([False, False, True])
    view = scan(str(tmp_path), Request(), lambda: next(answers, True))
    assert steps(view) == [4, 3]
    assert "took too long" in (view.error or "")


# --- DCP ----------------------------------------------------------------------------------------------------------


def break_metadata(path: Path) -> None:
    files.cut(path / ".metadata")


def empty_metadata(path: Path) -> None:
    (path / ".metadata").write_bytes(b"")


def no_metadata(path: Path) -> None:
    (path / ".metadata").unlink()


def missing_shard(path: Path) -> None:
    (path / "__1_0.distcp").unlink()


def short_shard(path: Path) -> None:
    files.cut(path / "__0_0.distcp", 0.99)


def interrupted_again(path: Path) -> None:
    (path / ".metadata.tmp").write_bytes(b"x")


def no_shards_named(path: Path) -> None:
    (path / ".metadata").write_bytes(files.dcp_metadata({}))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (break_metadata, ".metadata is cut off or damaged"),
        (empty_metadata, ".metadata has 0 bytes"),
        (no_metadata, "has no .metadata"),
        (missing_shard, "__1_0.distcp is missing"),
        (short_shard, "has 99 bytes of 100"),
        (interrupted_again, "a save was interrupted"),
        (no_shards_named, "names no shard"),
    ],
)
def test_damaged_dcp(tmp_path: Path, damage: Callable[[Path], None], expected: str) -> None:
    files.dcp(tmp_path / "step_1")
    damage(files.dcp(tmp_path / "step_2"))
    view = look(tmp_path)
    assert complete(view) == ["step_1"]
    assert expected in reason(view, "step_2")


def test_dcp_metadata_of_each_rank(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        path = tmp_path / f"step_{step}"
        path.mkdir()
        for rank in range(3):
            (path / f"__{rank}_0.distcp").write_bytes(bytes(10))
            (path / f"__{rank}.metadata").write_bytes(files.dcp_metadata({f"__{rank}_0.distcp": 10}))
    assert steps(look(tmp_path)) == [3, 2, 1]
    (tmp_path / "step_3" / "__1.metadata").unlink()
    assert "rank 1 of 3 wrote no metadata" in reason(look(tmp_path), "step_3")
    (tmp_path / "step_2" / "__2.metadata").unlink()
    (tmp_path / "step_2" / "__2_0.distcp").unlink()
    files_of_one = tmp_path / "step_1"
    assert complete(look(tmp_path)) == [files_of_one.name]


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    path = files.dcp(tmp_path / "step_1")
    proof = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(proof),)

    (path / ".metadata").write_bytes(pickle.dumps({"storage_data": Evil()}))
    files.torch_file(tmp_path / "ckpt.pt", {"step": 3, "x": Evil()})
    view = look(tmp_path)
    assert not proof.exists()
    assert "names no shard" in reason(view, "step_1")
    assert steps(view) == [3]


def test_huge_metadata_is_not_read_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcp_format, "MAX_METADATA_BYTES", 10)
    files.dcp(tmp_path / "step_1")
    os.truncate(files.dcp(tmp_path / "step_2") / "__0_0.distcp", 0)
    files.cut(files.dcp(tmp_path / "step_3") / ".metadata", 0.9)
    view = look(tmp_path)
    assert complete(view) == ["step_1"]
    assert "is cut off" in reason(view, "step_3")


def test_a_directory_that_is_itself_the_checkpoint(tmp_path: Path) -> None:
    files.dcp(tmp_path)
    view = look(tmp_path)
    assert [found.path for found in view.complete] == [str(tmp_path)]
    assert steps(view) == [None]
    # Overwritten in place: shards newer than the metadata are those of a save that did not finish.
    files.set_age(tmp_path / ".metadata", 100)
    view = look(tmp_path)
    assert view.complete == ()
    assert "a later save was interrupted" in view.skipped[0].reason


def test_copied_directory_may_have_any_times(tmp_path: Path) -> None:
    path = files.dcp(tmp_path / "step_1")
    files.set_age(path / ".metadata", 1000)
    assert complete(look(tmp_path)) == ["step_1"]


# --- torch.save and safetensors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_cut_off_torch_file(tmp_path: Path, keep: float) -> None:
    files.torch_file(tmp_path / "ckpt_1.pt")
    files.cut(files.torch_file(tmp_path / "ckpt_2.pt"), keep)
    view = look(tmp_path)
    assert complete(view) == ["ckpt_1.pt"]
    assert reason(view, "ckpt_2.pt")


def test_torch_file_with_a_hole(tmp_path: Path) -> None:
    path = files.torch_file(tmp_path / "ckpt_2.pt")
    data = bytearray(path.read_bytes())
    start = data.index(b"PK\x03\x04", 1)
    data[start : start + 64] = bytes(64)
    path.write_bytes(data)
    assert "hole" in reason(look(tmp_path), "ckpt_2.pt")
    path.write_bytes(bytes(len(data)))
    assert "zeros" in reason(look(tmp_path), "ckpt_2.pt")


def test_torch_file_whose_pickle_was_damaged(tmp_path: Path) -> None:
    path = files.torch_file(tmp_path / "ckpt_2.pt", {"step": 5, "name": "abcdefgh"})
    path.write_bytes(path.read_bytes().replace(b"abcdefgh", b"abcdefgX", 1))
    assert "crc" in reason(look(tmp_path), "ckpt_2.pt")


def test_other_files_under_a_torch_suffix(tmp_path: Path) -> None:
    (tmp_path / "ckpt_3.pt").write_bytes(b"not a checkpoint at all")
    assert reason(look(tmp_path), "ckpt_3.pt") == "not a file of torch.save"


def test_torch_file_without_a_suffix(tmp_path: Path) -> None:
    files.torch_file(tmp_path / "ckpt_10")
    files.cut(files.torch_file(tmp_path / "ckpt_20"))
    (tmp_path / "README").write_text("x")
    (tmp_path / "LICENSE-2").write_text("x")
    view = look(tmp_path)
    assert complete(view) == ["ckpt_10"]
    assert [os.path.basename(one.path) for one in view.skipped] == ["ckpt_20"]


def test_single_overwritten_file_tells_its_step(tmp_path: Path) -> None:
    files.torch_file(tmp_path / "ckpt.pt", {"step": 250, "model": {}})
    files.torch_file(tmp_path / "ckpt.pt.tmp")
    view = look(tmp_path)
    assert [(os.path.basename(c.path), c.step) for c in view.complete] == [("ckpt.pt", 250)]


def test_model_without_its_optimizer_is_not_whole(tmp_path: Path) -> None:
    for step in (10, 20):
        files.torch_file(tmp_path / f"model_{step}.pt")
        files.torch_file(tmp_path / f"optim_{step}.pt")
    files.torch_file(tmp_path / "model_30.pt")
    files.torch_file(tmp_path / "best_model_30.pt")
    view = look(tmp_path)
    assert complete(view) == ["model_20.pt", "model_10.pt"]
    assert reason(view, "model_30.pt") == "lacks optim_{step}.pt, which most other checkpoints here have"


def test_extra_and_differently_named_files_make_nobody_incomplete(tmp_path: Path) -> None:
    files.torch_file(tmp_path / "epoch=0-val_loss=0.31-step=10.ckpt")
    files.torch_file(tmp_path / "epoch=1-val_loss=0.2-step=20.ckpt")
    assert steps(look(tmp_path)) == [20, 10]
    files.torch_file(tmp_path / "a_100.pt")
    files.torch_file(tmp_path / "b_200.pt")
    assert steps(look(tmp_path)) == [200, 100, 20, 10]


def test_several_files_without_a_step_are_not_guessed_among(tmp_path: Path) -> None:
    files.torch_file(tmp_path / "model.pt")
    files.torch_file(tmp_path / "optimizer.pt")
    view = look(tmp_path)
    assert view.complete == ()
    assert "--checkpoint-pattern" in reason(view, "model.pt")
    files.torch_file(tmp_path / "checkpoint.pt")
    assert complete(look(tmp_path)) == ["checkpoint.pt"]


def test_file_without_a_step_beside_numbered_ones(tmp_path: Path) -> None:
    files.set_age(files.torch_file(tmp_path / "step_100.pt"), 100)
    files.set_age(files.torch_file(tmp_path / "step_200.pt"), 50)
    files.set_age(files.torch_file(tmp_path / "final_weights.pt"), 10)
    files.set_age(files.torch_file(tmp_path / "last.pt"), 75)
    view = look(tmp_path)
    assert complete(view) == ["step_200.pt", "last.pt", "step_100.pt"]
    assert "its step is not known" in reason(view, "final_weights.pt")


def test_numbered_things_that_are_no_checkpoints_do_not_count(tmp_path: Path) -> None:
    files.torch_file(tmp_path / "ckpt.pt")
    (tmp_path / "version_0").mkdir()
    (tmp_path / "version_0" / "metrics.csv").write_text("x")
    assert complete(look(tmp_path)) == ["ckpt.pt"]
    files.cut(files.torch_file(tmp_path / "ckpt_10.pt"))
    assert complete(look(tmp_path)) == [], "an incomplete one does: ckpt.pt may be anything"


def test_what_matters_is_named_before_temporary_leftovers(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"tmp_{number}").mkdir()
    files.cut(files.torch_file(tmp_path / "ckpt_10.pt"))
    view = look(tmp_path)
    assert [os.path.basename(one.path) for one in view.skipped[:3]] == ["ckpt_10.pt", "tmp_199", "tmp_198"]
    assert view.skipped[-1].reason == "101 more entries were skipped"


def test_safetensors(tmp_path: Path) -> None:
    (tmp_path / "step_1.safetensors").write_bytes(files.safetensors_bytes())
    (tmp_path / "step_2.safetensors").write_bytes(files.safetensors_bytes()[:-1])
    (tmp_path / "step_3.safetensors").write_bytes(files.safetensors_bytes()[:20])
    (tmp_path / "step_4.safetensors").write_bytes((5).to_bytes(8, "little") + b"{nope" + bytes(10))
    (tmp_path / "step_5.safetensors").write_bytes((1 << 60).to_bytes(8, "little") + bytes(10))
    view = look(tmp_path)
    assert complete(view) == ["step_1.safetensors"]
    assert "cut off: has" in reason(view, "step_2.safetensors")
    assert len(view.skipped) == 4


def test_directory_of_rank_files(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        for rank in range(2):
            files.torch_file(tmp_path / f"global_step{step}" / f"zero_pp_rank_{rank}_optim_states.pt")
    files.cut(tmp_path / "global_step40" / "zero_pp_rank_1_optim_states.pt")
    (tmp_path / "global_step30" / "zero_pp_rank_1_optim_states.pt").unlink()
    view = look(tmp_path)
    assert steps(view) == [20, 10]
    assert "zero_pp_rank_1_optim_states.pt" in reason(view, "global_step40")
    assert "lacks zero_pp_rank_1" in reason(view, "global_step30")


# --- Hugging Face ---------------------------------------------------------------------------------------------------


def test_hf(tmp_path: Path) -> None:
    files.hf(tmp_path, 500)
    files.hf(tmp_path, 1000, sharded=True)
    files.hf(tmp_path, 1500, optimizer=False)
    (files.hf(tmp_path, 2000) / "trainer_state.json").unlink()
    files.cut(files.hf(tmp_path, 2500) / "trainer_state.json")
    (files.hf(tmp_path, 3000, sharded=True) / "model-00002-of-00002.safetensors").unlink()
    files.cut(files.hf(tmp_path, 3500) / "optimizer.pt")
    (files.hf(tmp_path, 4000) / "model.safetensors").unlink()
    os.rename(files.hf(tmp_path, 4500), tmp_path / "checkpoint-4501")
    view = look(tmp_path)
    assert steps(view) == [1000, 500]
    assert {found.format for found in view.complete} == {"hf"}
    assert reason(view, "checkpoint-1500") == "lacks optimizer.pt, which most other checkpoints here have"
    assert "has no trainer_state.json" in reason(view, "checkpoint-2000")
    assert "not valid JSON" in reason(view, "checkpoint-2500")
    assert "model-00002-of-00002.safetensors is missing" in reason(view, "checkpoint-3000")
    assert reason(view, "checkpoint-3500").startswith("optimizer.pt")
    assert "no model weights" in reason(view, "checkpoint-4000")
    assert "is of step 4500" in reason(view, "checkpoint-4501")


def test_hf_with_fsdp(tmp_path: Path) -> None:
    for step in (1, 2):
        path = files.hf(tmp_path, step)
        (path / "model.safetensors").unlink()
        files.dcp(path / "pytorch_model_fsdp_0")
        files.dcp(path / "optimizer_0")
    (tmp_path / "checkpoint-2" / "optimizer_0" / ".metadata").unlink()
    view = look(tmp_path)
    assert steps(view) == [1]
    assert reason(view, "checkpoint-2").startswith("optimizer_0: has no .metadata")


# --- Lightning, Megatron, NeMo --------------------------------------------------------------------------------------


def test_lightning(tmp_path: Path) -> None:
    files.torch_file(tmp_path / "epoch=0-step=100.ckpt", {"global_step": 100})
    files.torch_file(tmp_path / "epoch=1.ckpt", {"global_step": 200})
    files.torch_file(tmp_path / "last.ckpt", {"global_step": 250})
    files.cut(files.torch_file(tmp_path / "epoch=2-step=300.ckpt", {"global_step": 300}))
    files.dcp(tmp_path / "epoch=0-step=50.ckpt")
    view = look(tmp_path, format="lightning")
    assert steps(view) == [250, 200, 100, 50]
    assert complete(view)[0] == "last.ckpt"


def test_megatron_tracker(tmp_path: Path) -> None:
    files.megatron(tmp_path, 100)
    files.megatron(tmp_path, 200)
    files.megatron(tmp_path, 300, tracker=False)
    view = look(tmp_path)
    assert steps(view) == [200, 100]
    assert "newer than latest_checkpointed_iteration.txt says (200)" in reason(view, "iter_0000300")


@pytest.mark.parametrize("text", ["400", "", "garbage", "12\n13", "\xff"])
def test_megatron_tracker_that_is_worth_nothing(tmp_path: Path, text: str) -> None:
    files.megatron(tmp_path, 100)
    files.megatron(tmp_path, 200)
    files.cut(files.megatron(tmp_path, 400) / "mp_rank_01" / "model_optim_rng.pt")
    (tmp_path / "latest_checkpointed_iteration.txt").write_bytes(text.encode("latin-1"))
    view = look(tmp_path)
    assert steps(view) == [200, 100]
    assert reason(view, "latest_checkpointed_iteration.txt")


def test_megatron_layouts(tmp_path: Path) -> None:
    files.megatron_distributed(tmp_path / "iter_0000010")
    files.megatron_distributed(tmp_path / "iter_0000020")
    (files.megatron_distributed(tmp_path / "iter_0000030") / ".metadata").unlink()
    (files.megatron_distributed(tmp_path / "iter_0000040") / "common.pt").unlink()
    view = look(tmp_path, format="megatron")
    assert steps(view) == [20, 10]
    assert "lacks common.pt" in reason(view, "iter_0000040")


def test_megatron_rank_missing_in_the_middle(tmp_path: Path) -> None:
    path = files.megatron(tmp_path, 100, ranks=3)
    shutil.rmtree(path / "mp_rank_01")
    assert reason(look(tmp_path), "iter_0000100") == "holds no mp_rank_01"


def test_megatron_release(tmp_path: Path) -> None:
    os.rename(files.megatron(tmp_path, 100), tmp_path / "release")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release\n")
    assert steps(look(tmp_path)) == [0]


def test_deepspeed_pointer(tmp_path: Path) -> None:
    for step in (10, 20):
        files.torch_file(tmp_path / f"global_step{step}" / "mp_rank_00_model_states.pt")
    (tmp_path / "latest").write_text("global_step10")
    view = look(tmp_path)
    assert steps(view) == [10]
    assert "newer than latest says (10)" in reason(view, "global_step20")
    (tmp_path / "latest").write_text("global_step99")
    view = look(tmp_path)
    assert steps(view) == [20, 10]
    assert "points at global_step99, which is not there or not complete" in reason(view, "latest")


def test_a_temporary_file_in_a_directory_tells_until_it_was_saved_again(tmp_path: Path) -> None:
    """accelerate's save_state, killed while safetensors wrote; another save to the same place leaves that file be."""
    folder = tmp_path / "step_2"
    for name in ("optimizer.bin", "scheduler.bin"):
        files.torch_file(folder / name)
    left = folder / ".tmpcbnf2J"
    left.write_bytes(b"half")
    assert reason(look(tmp_path), "step_2") == "holds a temporary file: the save did not finish"
    (folder / "model.safetensors").write_bytes(files.safetensors_bytes())
    assert complete(look(tmp_path)) == []
    os.utime(left, ns=(0, 0))
    assert complete(look(tmp_path)) == ["step_2"]


def test_nemo(tmp_path: Path) -> None:
    files.nemo2(tmp_path, 100)
    files.nemo2(tmp_path, 200, last=True)
    unfinished = files.nemo2(tmp_path, 300, last=True)
    (tmp_path / f"{unfinished.name}-unfinished").touch()
    broken = files.nemo2(tmp_path, 400)
    (broken / "weights" / ".metadata").unlink()
    view = look(tmp_path)
    assert steps(view) == [200, 100]
    assert {found.format for found in view.complete} == {"nemo"}
    assert "says that the save did not finish" in reason(view, unfinished.name)
    assert reason(view, broken.name).startswith("weights: has no .metadata")


@pytest.mark.parametrize("keep", [0.05, 0.3, 0.6])
def test_nemo_archive(tmp_path: Path, keep: float) -> None:
    files.nemo_archive(tmp_path / "model-step=1.nemo")
    files.cut(files.nemo_archive(tmp_path / "model-step=2.nemo"), keep)
    view = look(tmp_path, format="nemo")
    assert complete(view) == ["model-step=1.nemo"]
    assert reason(view, "model-step=2.nemo")


# --- the user's own word ----------------------------------------------------------------------------------------------


def test_pattern_gives_names_and_steps(tmp_path: Path) -> None:
    for name in ("run-a.7.state", "run-a.12.state", "other.99.state"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "run-a.13.state").touch()
    view = look(tmp_path, format="custom", pattern=Pattern.parse(r"run-a\.(?P<step>\d+)\.state"))
    assert steps(view) == [12, 7]
    assert "0 bytes" in reason(view, "run-a.13.state")


def test_pattern_with_a_known_format_verifies_too(tmp_path: Path) -> None:
    files.torch_file(tmp_path / "x-1-9.pt")
    files.cut(files.torch_file(tmp_path / "x-2-8.pt"))
    assert steps(look(tmp_path, pattern=Pattern.parse(r"x-(?P<step>\d)-\d\.pt"))) == [1]


def test_pattern_that_is_none() -> None:
    with pytest.raises(ValueError, match="not a regular expression"):
        Pattern.parse("(")
    with pytest.raises(ValueError, match="needs --checkpoint-pattern"):
        Request(format="custom")
    with pytest.raises(ValueError, match="unknown checkpoint format"):
        Request(format="onnx")


def test_offer_is_bounded_and_comes_back(tmp_path: Path) -> None:
    for step in range(30):
        files.torch_file(tmp_path / f"step_{step}.pt")
        (tmp_path / f"tmp_{step}").mkdir()
    view = look(tmp_path, wanted=30)
    assert len(view.complete) == 30
    offer = json.loads(json.dumps(view.as_offer()))
    assert len(json.dumps(offer)) < 8000
    back = View.from_offer(offer)
    assert back.complete == view.complete[:20]
    assert back.directory == str(tmp_path)


@pytest.mark.parametrize(
    "offer",
    [
        None,
        [],
        {},
        {"v": 2},
        {"v": 1},
        {"v": 1, "directory": "relative"},
        {"v": 1, "directory": "raw:zz"},
        {"v": 1, "directory": "/d", "complete": 3},
        {"v": 1, "directory": "/d", "complete": [["/p", "1", "dcp", 0]]},
        {"v": 1, "directory": "/d", "complete": [["/p", 1, "dcp"]]},
        {"v": 1, "directory": "/d", "skipped": [["/p"]]},
        {"v": 1, "directory": "/d", "error": 5},
    ],
)
def test_foreign_offers_are_refused(offer: object) -> None:
    with pytest.raises(ValueError, match=r"offer|hex"):
        View.from_offer(offer)


def test_validator_is_not_built_from_nothing() -> None:
    with pytest.raises(ValueError, match="is empty"):
        Validator.parse("  ")
    with pytest.raises(ValueError, match="quotation"):
        Validator.parse("check '")
