"""Waiting for rank 0's store: until somebody listens, and never where waiting is no use."""

from __future__ import annotations

import socket

import pytest

from ftlaunch.heartbeat import hooks_torch, storewait


def surroundings(port: int, rank: str = "1") -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": rank, "WORLD_SIZE": "2"}


@pytest.fixture
def place() -> socket.socket:
    """A port that is taken, with nobody listening yet."""
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    return holder


def test_it_waits_until_somebody_listens(place: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bool] = []
    look = storewait._listens

    def looking(family: int, address: object) -> bool:
        looked.append(look(family, address))
        if len(looked) == 3:
            place.listen()
        return looked[-1]

    monkeypatch.setattr(storewait, "_listens", looking)
    with place:
        assert storewait.until_listening(surroundings(place.getsockname()[1]))
    assert looked == [False, False, False, True]


def test_it_gives_up_in_time(place: socket.socket) -> None:
    with place:
        assert not storewait.until_listening(surroundings(place.getsockname()[1]), limit_s=0.02)


def test_who_makes_the_store_or_has_no_address_of_it_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storewait, "_listens", lambda family, address: pytest.fail("it looked"))
    assert not storewait.until_listening(surroundings(1, rank="0"))
    assert not storewait.until_listening({"RANK": "1"})


def test_a_host_that_cannot_be_reached_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(self: socket.socket, address: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    with pytest.raises(OSError, match="no route"):
        storewait.until_listening(surroundings(1))


def test_only_who_joins_by_the_environment_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setattr(hooks_torch, "until_listening", lambda: waited.append(1))
    join = hooks_torch._once_there_is_a_store(lambda *args, **kwargs: (args, kwargs))
    assert join("gloo") == (("gloo",), {})
    assert join("gloo", "env://", rank=1) == (("gloo", "env://"), {"rank": 1})
    assert len(waited) == 2
    join("gloo", init_method="tcp://10.0.0.1:1")
    join("gloo", store=object())
    join("gloo", None, None, 2, 1, object())
    assert len(waited) == 2


def test_a_wait_that_fails_is_torchs_to_find_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("no such host")

    monkeypatch.setattr(hooks_torch, "until_listening", fail)
    assert hooks_torch._once_there_is_a_store(lambda: "joined")() == "joined"
