"""Fixtures for tests of all layers. What a test starts, opens or creates must not outlive it: :func:`no_leaks`."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support import leaks, ranks, users
from support.jobs import Launcher
from support.waiting import wait_until

_MARKER = f"FTLAUNCH_TEST_SESSION={uuid.uuid4().hex}"
_SETTLE_S = 3.0
_PRIVATE = ("home", "state", "run", "cache", "tmp")
_session: list[Path] = []

# How long an example takes says something about the machine, not about the product.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("any-machine")


def pytest_configure() -> None:
    """Give this run a home, a state and a runtime directory of its own, before anything asks for them."""
    # pytest's own tmp_path stays where a person looks for it after a failure.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    base = Path(tempfile.mkdtemp(prefix="ft-tests-"))
    base.chmod(0o755)
    _session.append(base)
    for name in _PRIVATE:
        (base / name).mkdir(mode=0o700)
    os.environ.update(
        HOME=str(base / "home"),
        XDG_STATE_HOME=str(base / "state"),
        XDG_RUNTIME_DIR=str(base / "run"),
        XDG_CACHE_HOME=str(base / "cache"),
        TMPDIR=str(base / "tmp"),
    )
    tempfile.tempdir = None
    name, _, value = _MARKER.partition("=")
    os.environ[name] = value
    for key in [key for key in os.environ if key.startswith(("PET_", "TORCHELASTIC_"))]:
        del os.environ[key]


def pytest_unconfigure() -> None:
    """Remove the private directories."""
    while _session:
        shutil.rmtree(_session.pop(), ignore_errors=True)


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a process, a thread, a descriptor, a socket or a runtime directory behind.

    What is just ending gets a moment to do so.
    """
    folders = tuple(_session[0] / name for name in ("run", "tmp"))
    before = leaks.take(_MARKER, folders)
    yield
    left: list[str] = []

    def clean() -> bool:
        left[:] = leaks.remaining(before, _MARKER, folders)
        return not left

    try:
        wait_until(clean, _SETTLE_S)
    except AssertionError:
        pytest.fail("left behind:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture
def ftlaunch() -> Iterator[Launcher]:
    """Start ``ftlaunch`` in private directories: ``job = ftlaunch("--nproc-per-node", "2", script)``.

    Whatever outlives its agent fails the test, also when the test itself left the agent running to be killed here.
    """
    launcher = Launcher()
    yield launcher
    survivors = launcher.close()
    assert not survivors, f"outlived their agent: {survivors}"


@pytest.fixture
def ftctl() -> Iterator[Launcher]:
    """Start ``ftctl`` in private directories, as :func:`ftlaunch` does; for drills, which start jobs themselves."""
    launcher = Launcher("ftlaunch.launcher.ftctl")
    yield launcher
    survivors = launcher.close()
    assert not survivors, f"outlived ftctl: {survivors}"


@pytest.fixture
def agent() -> Iterator[ranks.Agent]:
    """The agent's end of what ties it to its ranks: starts ranks as an agent does, and hears them."""
    with ranks.agent() as made:
        yield made


@pytest.fixture
def unprivileged() -> Iterator[users.Unprivileged]:
    """A user without privileges and a directory of its own; the test is skipped where there can be none."""
    # Outside tmp_path, whose parents only this user may enter.
    home = Path(tempfile.mkdtemp(prefix="ft-user-", dir=os.environ["PYTEST_DEBUG_TEMPROOT"]))
    user, reason = users.become(home)
    try:
        if user is None:
            pytest.skip(reason)
        yield user
    finally:
        shutil.rmtree(home, ignore_errors=True)
