"""Where the heartbeat socket lies, for every kind of place that there may be."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from ftlaunch.heartbeat.watching import endpoint as module
from ftlaunch.heartbeat.watching.endpoint import MAX_PATH_BYTES, Endpoint, EndpointError, open_endpoint, sweep_stale
from support import users


@contextlib.contextmanager
def opened(environ: Mapping[str, str], fallbacks: Sequence[str] = (), **more: bool) -> Iterator[Endpoint]:
    made = open_endpoint(environ, fallbacks, **more)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short name: pytest's own may be too deep for a socket."""
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="ft-ep-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def reach(made: Endpoint) -> None:
    """A worker can send to the address."""
    address = f"\0{made.address[1:]}" if made.address.startswith("@") else made.address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(address)
        sender.send(b"hello")
    assert made.receiver.recv(100) == b"hello"


def deep(folder: Path, length: int) -> Path:
    """An existing directory whose path has exactly so many bytes."""
    path = folder
    while length - len(str(path)) > 202:
        path = path / ("d" * 100)
    rest = length - len(str(path)) - 1
    path = path / ("e" * rest)
    path.mkdir(parents=True)
    assert len(str(path)) == length
    return path


def test_directory_is_private_and_gone_after_close(short: Path) -> None:
    made = open_endpoint({"TMPDIR": str(short)}, ())
    reach(made)
    directory = Path(made.directory)
    assert directory.parent == short
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert made.intact()
    (directory / "control").touch()
    made.close()
    made.close()
    assert list(short.iterdir()) == []


def test_runtime_dir_comes_before_tmpdir_before_fallbacks(short: Path) -> None:
    for name in ("run", "tmp", "fall"):
        (short / name).mkdir()
    environ = {"XDG_RUNTIME_DIR": str(short / "run"), "TMPDIR": str(short / "tmp")}
    for wanted in ("run", "tmp", "fall"):
        with opened(environ, [str(short / "fall")]) as made:
            assert Path(made.directory).parent == short / wanted
        environ.pop({"run": "XDG_RUNTIME_DIR", "tmp": "TMPDIR"}.get(wanted, ""), None)


@pytest.mark.parametrize("length", [40, 71, 72, 74, 75, 76, 107, 108, 120, 255, 1000])
def test_any_length_of_tmpdir_will_do(short: Path, length: int) -> None:
    path = deep(short, length)
    with opened({"TMPDIR": str(path)}, [str(short)]) as made:
        assert len(os.fsencode(made.address)) <= MAX_PATH_BYTES
        fits = length + len("/ftlaunch-01234567-01234567/beats") <= MAX_PATH_BYTES
        assert Path(made.directory).parent == (path if fits else short)
        reach(made)


def test_tmpdir_with_bytes_that_are_no_text_and_relative_ones(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = os.fsdecode(os.fsencode(short) + b"/\xff\xc3\xa9")
    os.mkdir(odd)
    with opened({"TMPDIR": odd}) as made:
        reach(made)
    monkeypatch.chdir(short)
    os.mkdir("here")
    with opened({"TMPDIR": "here"}) as made:
        assert made.address.startswith(f"{short}/here/")
        monkeypatch.chdir("/")
        reach(made)


def test_whatever_the_umask(short: Path) -> None:
    before = os.umask(0o777)
    try:
        with opened({"TMPDIR": str(short)}) as made:
            assert stat.S_IMODE(os.stat(made.directory).st_mode) == 0o700
            assert stat.S_IMODE(os.stat(made.address).st_mode) == 0o600
            reach(made)
    finally:
        os.umask(before)


def test_places_that_do_not_exist_or_are_files_are_passed_over(short: Path) -> None:
    (short / "file").touch()
    environ = {"XDG_RUNTIME_DIR": str(short / "none"), "TMPDIR": str(short / "file")}
    with opened(environ, [str(short)]) as made:
        assert Path(made.directory).parent == short


def test_without_any_place_an_abstract_address_serves(short: Path) -> None:
    with opened({"TMPDIR": str(short / "none")}, []) as made:
        assert made.address.startswith("@ftlaunch-") and made.directory == ""
        assert made.intact()
        reach(made)


def test_when_nothing_works_the_error_names_every_path_and_why(short: Path) -> None:
    too_deep = deep(short, 150)
    with pytest.raises(EndpointError) as caught:
        open_endpoint({"XDG_RUNTIME_DIR": str(too_deep), "TMPDIR": str(short / "none")}, [], abstract=False)
    text = str(caught.value)
    assert str(too_deep) in text and "183 bytes" in text and str(MAX_PATH_BYTES) in text
    assert f"{short / 'none'}: No such file" in text
    assert "TMPDIR" in text and "\n" not in text
    assert list(too_deep.iterdir()) == []


PROBE = """
import sys
from ftlaunch.heartbeat.watching.endpoint import open_endpoint
made = open_endpoint({"XDG_RUNTIME_DIR": sys.argv[1], "TMPDIR": sys.argv[2]}, sys.argv[3:])
print(made.directory or made.address)
made.close()
"""


def test_a_directory_that_may_not_be_written_is_passed_over(unprivileged: users.Unprivileged) -> None:
    closed = unprivileged.home / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    home = str(unprivileged.home)
    command = unprivileged.command(unprivileged.python, "-c", PROBE, str(closed), "/proc", home)
    environment = {**os.environ, **unprivileged.environment}
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{home}/ftlaunch-")


def test_a_place_where_no_socket_can_be_bound_is_left_clean(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (short / "odd").mkdir()
    (short / "good").mkdir()
    bind = module._bind

    def refuse(address: str) -> socket.socket:
        if "/odd/" in address:
            raise PermissionError(1, "Operation not permitted")
        return bind(address)

    monkeypatch.setattr(module, "_bind", refuse)
    with opened({"TMPDIR": str(short / "odd")}, [str(short / "good")]) as made:
        assert "/good/" in made.address
    assert list((short / "odd").iterdir()) == []


@pytest.mark.parametrize("how", ["all gone", "socket gone", "another directory"])
def test_a_place_that_somebody_emptied_is_noticed(short: Path, how: str) -> None:
    with opened({"TMPDIR": str(short)}) as made:
        os.unlink(made.address)
        if how != "socket gone":
            os.rmdir(made.directory)
        if how == "another directory":
            os.mkdir(made.directory)
        assert not made.intact()
    left = list(short.iterdir())
    assert len(left) == (1 if how == "another directory" else 0), "what is not ours stays"


# -- what dead agents left ------------------------------------------------------------------------------------------

DIE = """
import os, sys
from ftlaunch.heartbeat.watching.endpoint import open_endpoint
made = open_endpoint({"TMPDIR": sys.argv[1]}, ())
print(made.directory, flush=True)
sys.stdin.read()
os._exit(9)
"""


def test_directories_of_dead_agents_are_removed_those_of_living_ones_are_not(short: Path) -> None:
    agents = [
        subprocess.Popen(
            [sys.executable, "-c", DIE, str(short)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    directories = [Path(agent.stdout.readline().strip()) for agent in agents if agent.stdout is not None]
    assert sweep_stale({"TMPDIR": str(short)}, ()) == 0
    agents[0].communicate("")
    assert sweep_stale({"TMPDIR": str(short)}, ()) == 1
    assert [directory.exists() for directory in directories] == [False, True]
    agents[1].communicate("")
    assert sweep_stale({"TMPDIR": str(short)}, ()) == 1
    assert sweep_stale({"TMPDIR": str(short)}, ()) == 0


def test_what_only_looks_like_one_is_not_touched(short: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    (short / f"ftlaunch-{boot}-file").touch()
    (short / "ftlaunch-of-another-boot").mkdir(mode=0o700)
    (short / f"ftlaunch-{boot}-data").mkdir(mode=0o700)
    (short / f"ftlaunch-{boot}-data" / "model.pt").touch()
    (short / f"ftlaunch-{boot}-open").mkdir(mode=0o755)
    (short / f"ftlaunch-{boot}-link").symlink_to(short / "ftlaunch-of-another-boot")
    (short / f"ftlaunch-{boot}-stale").mkdir(mode=0o700)
    before = {path.name for path in short.iterdir()}
    assert sweep_stale({"TMPDIR": str(short)}, ()) == 1
    assert {path.name for path in short.iterdir()} == before - {f"ftlaunch-{boot}-stale"}
    assert (short / f"ftlaunch-{boot}-data" / "model.pt").exists()


def test_an_agent_whose_fresh_directory_was_swept_away_takes_another(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between mkdir and the lock another agent's sweep may take the directory for a stale one."""
    lock, swept = module._lock, []

    def late_lock(fd: int) -> bool:
        if not swept:
            swept.append(sweep_stale({"TMPDIR": str(short)}, ()))
        return lock(fd)

    monkeypatch.setattr(module, "_lock", late_lock)
    with opened({"TMPDIR": str(short)}) as made:
        assert swept == [1]
        assert made.intact()
        reach(made)
    assert list(short.iterdir()) == []


def test_the_lock_is_held_for_as_long_as_the_endpoint_is_open(short: Path) -> None:
    with opened({"TMPDIR": str(short)}) as made:
        fd = os.open(made.directory, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.close(fd)
