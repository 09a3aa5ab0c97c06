"""What killed ranks leave in /dev/shm, told from what others use."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from ftlaunch.launcher.host import shm
from ftlaunch.launcher.host.quick_look import SHM, Identity, shm_identities

MIB = 1 << 20


@pytest.fixture
def folder() -> Iterator[str]:
    """A directory of our own in the real /dev/shm."""
    path = Path("/dev/shm", f"ftlaunch-test-{uuid.uuid4().hex[:12]}")
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"/dev/shm can't be written: {error.strerror}")
    yield str(path)
    for each in path.rglob("*"):
        if not each.is_dir():
            each.unlink()
    for each in sorted((each for each in path.rglob("*")), reverse=True):
        each.rmdir()
    path.rmdir()


def leftovers(before: Collection[Identity], folder: str = SHM, proc: str = "/proc") -> tuple[shm.Segment, ...]:
    """Files of ours that came after ``before`` and that nobody uses."""
    return shm.unused(shm.fresh(before, folder), folder, proc)


def holder(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that has done ``code`` once this returns, and then waits."""
    script = f"import mmap, os, sys\n{code}\nprint('ready', flush=True)\nsys.stdin.read()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


MAPPED = (
    "f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); os.truncate(f, 1 << 20); m = mmap.mmap(f, 1 << 20); "
    "m[:] = b'x' * (1 << 20); os.close(f)"
)
OPENED = "f = open(sys.argv[1], 'wb'); f.write(b'x' * 4096); f.flush()"


@pytest.mark.parametrize("code", [MAPPED, OPENED], ids=["mapped", "open"])
def test_a_segment_is_left_over_only_when_its_user_is_dead(folder: str, code: str) -> None:
    before = shm_identities(folder)
    process = holder(code, f"{folder}/segment")
    try:
        assert leftovers(before, folder) == ()
    finally:
        kill(process)
    (left,) = leftovers(before, folder)
    assert left.name == "segment" and left.size == (MIB if code is MAPPED else 4096)


def test_a_killed_rank_of_shared_memory_is_found_reported_and_removed_when_asked() -> None:
    """As multiprocessing.shared_memory makes them, in the real directory; its resource tracker is killed too."""
    before = shm_identities()
    code = (
        "from multiprocessing import shared_memory, resource_tracker; resource_tracker.register = lambda *a: None; "
        "block = shared_memory.SharedMemory(create=True, size=1 << 20); block.buf[:] = b'x' * (1 << 20); "
        "print(block.name, flush=True)"
    )
    script = f"import sys\n{code}\nsys.stdin.read()\n"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    try:
        kill(process)
        left = [segment for segment in leftovers(before) if segment.name == name]
        assert len(left) == 1
        assert shm.describe(left, cleaned=False) == (
            f"1 MiB new in /dev/shm since the ranks started, and open nowhere: {name} (--clean-shm removes such)"
        )
        assert os.path.exists(f"/dev/shm/{name}"), "nobody asked to remove it"
        assert shm.remove(left) == tuple(left) and not os.path.exists(f"/dev/shm/{name}")
        assert shm.describe(left, cleaned=True).startswith("removed 1 MiB new in /dev/shm since the ranks started")
    finally:
        Path("/dev/shm", name).unlink(missing_ok=True)


def test_what_was_there_before_or_is_no_file_does_not_count(folder: str) -> None:
    Path(folder, "older").write_bytes(b"x" * 100)
    before = shm_identities(folder)
    Path(folder, "sub").mkdir()
    Path(folder, "sub", "newer").write_bytes(b"x" * 100_000)
    Path(folder, "newest").write_bytes(b"x")
    os.mkfifo(f"{folder}/fifo")
    os.symlink(f"{folder}/older", f"{folder}/link")
    assert [segment.name for segment in leftovers(before, folder)] == ["newer", "newest"]


def test_a_name_used_again_is_another_segment(folder: str) -> None:
    path = Path(folder, "again")
    path.write_bytes(b"x")
    (old,) = leftovers((), folder)
    path.rename(Path(folder, "kept"))
    path.write_bytes(b"y")
    assert shm.remove([old]) == () and path.exists()


def test_files_of_others_are_not_ours(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(folder, "theirs").write_bytes(b"x")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert leftovers((), folder) == ()


def test_unreadable_processes_and_odd_maps_are_stepped_over(folder: str, tmp_path: Path) -> None:
    Path(folder, "segment").write_bytes(b"x")
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "maps").write_text("nonsense\n7f00-7f01 rw-s 0 zz:zz 5 /dev/shm/a\n")
    (tmp_path / "2").mkdir()
    assert [segment.name for segment in leftovers((), folder, str(tmp_path))] == ["segment"]


def test_free_space_and_long_lists(folder: str) -> None:
    free = shm.free_fraction(folder)
    assert free is not None and 0 <= free <= 1
    assert shm.free_fraction(f"{folder}/missing") is None
    segments = [shm.Segment(f"/dev/shm/s{number}", (1, number), MIB, 0) for number in range(8)]
    assert shm.describe(segments, cleaned=False).startswith(
        "8 MiB new in /dev/shm since the ranks started, and open nowhere: s0, s1, s2, s3, s4 and 3 more"
    )
    assert shm.describe([], cleaned=False) == ""
