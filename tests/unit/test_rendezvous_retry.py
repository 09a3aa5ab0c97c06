"""Trying again, renewing a lease, translating errors: with fake clocks and servers."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from ftlaunch.rendezvous.common.trust import NEVER, Trust
from ftlaunch.rendezvous.etcd import lease as leases
from ftlaunch.rendezvous.etcd import messages
from ftlaunch.rendezvous.etcd.errors import EtcdError, LeaseExists, LeaseGone, Refused, Unreachable
from ftlaunch.rendezvous.etcd.retry import Policy, Retry


class FakeTime:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def answers(*results: object) -> Callable[[], Awaitable[object]]:
    left = list(results)

    async def attempt() -> object:
        result = left.pop(0)
        if isinstance(result, BaseException):
            raise result
        return result

    return attempt


def retry(time: FakeTime, deadline: float = float("inf"), chance: float = 0.0) -> Retry:
    return Retry(Policy(1.0, 5.0, 2.0, 0.5), deadline, sleep=time.sleep, clock=time.clock, chance=lambda: chance)


def test_pauses_grow_to_a_limit() -> None:
    time = FakeTime()
    failures = [Unreachable("no")] * 5
    assert asyncio.run(retry(time).call(answers(*failures, "yes"))) == "yes"
    assert time.slept == [1, 2, 4, 5, 5]


def test_jitter_shortens_pauses() -> None:
    time = FakeTime()
    asyncio.run(retry(time, chance=1.0).call(answers(Unreachable("no"), Unreachable("no"), 1)))
    assert time.slept == [0.5, 1.0]
    assert Policy().pause(10_000, 0.0) == Policy().max_s


def test_the_deadline_is_kept() -> None:
    time = FakeTime()
    with pytest.raises(Unreachable, match="third"):
        asyncio.run(retry(time, deadline=104.0).call(answers(Unreachable("1"), Unreachable("2"), Unreachable("third"))))
    assert time.slept == [1, 2]


def test_what_is_refused_is_not_tried_again() -> None:
    time = FakeTime()
    with pytest.raises(Refused):
        asyncio.run(retry(time).call(answers(Refused("never"))))
    assert time.slept == []


# --- leases -----------------------------------------------------------------------------------------------------------


class FakeServer:
    """Answers renewals from a list; each takes half a second of fake time."""

    def __init__(self, time: FakeTime, *results: object) -> None:
        self._time = time
        self._results = list(results)
        self.sent: list[float] = []

    async def keep_alive(self, lease: int, timeout_s: float) -> int:
        self.sent.append(self._time.now)
        self._time.now += 0.5
        result = self._results.pop(0)
        if isinstance(result, BaseException):
            raise result
        assert isinstance(result, int)
        return result

    async def grant(self, ttl_s: int, lease: int = 0) -> tuple[int, int]:
        self._time.now += 0.5
        return 7, ttl_s


def kept(
    monkeypatch: pytest.MonkeyPatch,
    *results: object,
    left_s: float = 9.0,
    on_renewed: Callable[[float], None] | None = None,
) -> tuple[leases.Lease, FakeServer, FakeTime]:
    """Renew a lease of 9 s, of which some is left, until the server says that it is gone."""
    time = FakeTime()
    monkeypatch.setattr(leases.asyncio, "sleep", time.sleep)
    server = FakeServer(time, *results)
    lease = leases.Lease(7, 9.0, time.now + left_s)
    lease.on_renewed = on_renewed
    with pytest.raises(leases.LeaseOver):
        asyncio.run(leases.keep(server, lease, time.clock))  # type: ignore[arg-type]
    return lease, server, time


def test_a_lease_is_valid_from_when_its_renewal_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    lease, server, _ = kept(monkeypatch, 9, 9, 0)
    assert server.sent == [103.0, 106.0, 109.0]
    assert lease.valid_until == 106.0 + 9.0


def test_each_renewal_moves_on_when_the_ranks_must_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    trust = Trust(margin_s=2.0)
    trust.listener = told.append
    trust.reach(109.0)
    lease, _, _ = kept(monkeypatch, 9, Unreachable("no"), 9, 0, on_renewed=trust.reach)
    assert told == [108.0, 103.0 + 9.0 - 1.0, lease.valid_until - 1.0]
    trust.reach(105.0)
    assert len(told) == 3, "an answer of a lease before comes late"
    trust.release()
    trust.reach(500.0)
    assert told[3:] == [NEVER], "the job is over"


def test_a_granted_lease_counts_from_before_the_answer() -> None:
    time = FakeTime()
    lease = asyncio.run(leases.grant(FakeServer(time), 9.0, time.clock))  # type: ignore[arg-type]
    assert lease.valid_until == 109.0


def test_a_lease_that_was_long_in_coming_is_renewed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # As when it was asked for while the node was cut off.
    lease, server, _ = kept(monkeypatch, 9, 0, left_s=4.0)
    assert server.sent == [100.0, 103.0]
    assert lease.valid_until == 109.0


def test_every_error_but_the_servers_word_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [Unreachable("down"), Refused("password"), EtcdError("odd"), Unreachable("down")]
    lease, server, time = kept(monkeypatch, 9, *errors, 9, LeaseGone("gone"))
    assert len(server.sent) == 7
    # Quickly at first: there is still time before the lease ends.
    assert time.slept[1:5] == [2.5, 0.05, 0.1, 0.2]
    assert lease.valid_until == server.sent[5] + 9.0
    assert lease.trouble == ""


def test_a_renewal_answered_without_time_left_is_a_lost_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    lease, server, _ = kept(monkeypatch, 0)
    assert len(server.sent) == 1
    assert lease.valid_until == 109.0


# --- errors -----------------------------------------------------------------------------------------------------------


class Code(enum.Enum):
    NOT_FOUND = enum.auto()
    FAILED_PRECONDITION = enum.auto()
    UNAUTHENTICATED = enum.auto()
    UNIMPLEMENTED = enum.auto()
    PERMISSION_DENIED = enum.auto()
    INVALID_ARGUMENT = enum.auto()
    DEADLINE_EXCEEDED = enum.auto()
    UNAVAILABLE = enum.auto()
    RESOURCE_EXHAUSTED = enum.auto()


@dataclass(frozen=True)
class GrpcError:
    status: Code
    text: str

    def code(self) -> Code:
        return self.status

    def details(self) -> str:
        return self.text


@pytest.mark.parametrize(
    ("code", "text", "kind", "shown"),
    [
        (Code.NOT_FOUND, "etcdserver: requested lease not found", LeaseGone, "lease"),
        (Code.FAILED_PRECONDITION, "etcdserver: lease already exists", LeaseExists, "lease"),
        (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", messages.TokenRejected, "credentials"),
        (Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", messages.TokenRejected, "credentials"),
        (Code.INVALID_ARGUMENT, "etcdserver: user name is empty", Refused, "asks for a user and a password"),
        (Code.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password", Refused, "password"),
        (Code.UNIMPLEMENTED, "Received http2 header with status: 404", Refused, "not an etcd v3 endpoint"),
        (Code.UNAVAILABLE, "Trying to connect an http1.x server", Refused, "not an etcd v3 endpoint"),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", Refused, "denies access"),
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", Unreachable, "does not answer"),
        (Code.UNAVAILABLE, "ssl: CERTIFICATE_VERIFY_FAILED: x", Unreachable, "not signed by the given authority"),
        (Code.UNAVAILABLE, "Failed parsing HTTP/2 (got frame type 79)", Unreachable, "not an etcd v3 endpoint"),
        (
            Code.UNAVAILABLE,
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9: Connection refused (111)",
            Unreachable,
            "etcd at etcd:2379 cannot be reached: Connection refused (111)",
        ),
        (Code.UNAVAILABLE, "etcdserver: leader changed", Unreachable, "leader changed"),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Unreachable, "too many requests"),
    ],
)
def test_errors_are_translated_at_the_border(code: Code, text: str, kind: type[EtcdError], shown: str) -> None:
    error = messages.translate(Code, GrpcError(code, text), "etcd:2379")
    assert type(error) is kind
    assert shown in str(error)
    assert "\n" not in str(error)
