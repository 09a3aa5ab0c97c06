"""Between our plain data and etcd's protobuf messages, and from gRPC's errors to ours."""

from __future__ import annotations

import re
from typing import Any

from ftlaunch.rendezvous.etcd.errors import EtcdError, LeaseExists, LeaseGone, Refused, Unreachable
from ftlaunch.rendezvous.etcd.keys import KeyRange
from ftlaunch.rendezvous.etcd.wire import (
    Absent,
    Answer,
    Change,
    Condition,
    CreatedAt,
    Delete,
    Exists,
    Get,
    KeyValue,
    Operation,
    Put,
    Transaction,
    ValueIs,
)

_EQUAL, _GREATER = 0, 1
_CREATE, _VALUE = 1, 3


class TokenRejected(EtcdError):
    """The authentication token is no longer good. Caught in :mod:`.client`."""


def transaction(rpc: Any, wanted: Transaction) -> Any:
    """The request for a transaction."""
    return rpc.TxnRequest(
        compare=[_condition(rpc, condition) for condition in wanted.conditions],
        success=[_operation(rpc, operation) for operation in wanted.then],
        failure=[_operation(rpc, operation) for operation in wanted.otherwise],
    )


def _condition(rpc: Any, condition: Condition) -> Any:
    key = condition.key.encode()
    if isinstance(condition, Absent):
        return rpc.Compare(key=key, target=_CREATE, result=_EQUAL, create_revision=0)
    if isinstance(condition, Exists):
        return rpc.Compare(key=key, target=_CREATE, result=_GREATER, create_revision=0)
    if isinstance(condition, CreatedAt):
        return rpc.Compare(key=key, target=_CREATE, result=_EQUAL, create_revision=condition.revision)
    if isinstance(condition, ValueIs):
        return rpc.Compare(key=key, target=_VALUE, result=_EQUAL, value=condition.value)
    raise TypeError(f"{condition!r} is not a condition")


def _operation(rpc: Any, operation: Operation) -> Any:
    if isinstance(operation, Put):
        put = rpc.PutRequest(key=operation.key.encode(), value=operation.value, lease=operation.lease)
        return rpc.RequestOp(request_put=put)
    key, end = _where(operation.where)
    if isinstance(operation, Get):
        return rpc.RequestOp(request_range=rpc.RangeRequest(key=key, range_end=end, limit=operation.limit))
    if isinstance(operation, Delete):
        return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key, range_end=end))
    raise TypeError(f"{operation!r} is not an operation")


def _where(where: str | KeyRange) -> tuple[bytes, bytes]:
    if isinstance(where, KeyRange):
        return where.start.encode(), where.end.encode()
    return where.encode(), b""


def answer(response: Any) -> Answer:
    """What a transaction did."""
    found = tuple(
        tuple(_key_value(kv) for kv in part.response_range.kvs)
        for part in response.responses
        if part.WhichOneof("response") == "response_range"
    )
    return Answer(bool(response.succeeded), int(response.header.revision), found)


def _key_value(kv: Any) -> KeyValue:
    return KeyValue(
        kv.key.decode(errors="replace"), bytes(kv.value), int(kv.create_revision), int(kv.mod_revision), int(kv.lease)
    )


def watch_request(rpc: Any, keys: KeyRange) -> Any:
    """Watch a range from now on."""
    create = rpc.WatchCreateRequest(key=keys.start.encode(), range_end=keys.end.encode(), progress_notify=True)
    return rpc.WatchRequest(create_request=create)


def changes(response: Any) -> tuple[Change, ...]:
    """The events of a watch response. Type 1 is a deletion."""
    return tuple(
        Change(
            event.kv.key.decode(errors="replace"),
            None if event.type == 1 else _key_value(event.kv),
            int(event.kv.mod_revision),
        )
        for event in response.events
    )


def translate(codes: Any, error: Any, target: str) -> EtcdError:
    """One of our errors for one of gRPC's; ``codes`` is ``grpc.StatusCode``."""
    code, details = error.code(), " ".join(str(error.details() or "").split())
    if code is codes.NOT_FOUND and "lease not found" in details:
        return LeaseGone(details)
    if code is codes.FAILED_PRECONDITION and "lease already exists" in details:
        return LeaseExists(details)
    if code is codes.UNAUTHENTICATED or "revision of auth store is old" in details:
        return TokenRejected(f"etcd at {target} does not accept the credentials: {details}")
    if code is codes.UNIMPLEMENTED or "http1.x server" in details:
        return Refused(f"{target} is not an etcd v3 endpoint: {details}")
    if code is codes.PERMISSION_DENIED:
        return Refused(f"etcd at {target} denies access: {details}")
    if code is codes.INVALID_ARGUMENT:
        return Refused(f"etcd at {target}: {_explain(details)}")
    if code is codes.DEADLINE_EXCEEDED:
        return Unreachable(f"etcd at {target} does not answer")
    return Unreachable(f"etcd at {target} cannot be reached: {_explain(details)}")


def _explain(details: str) -> str:
    if "user name is empty" in details:
        return "it asks for a user and a password (ETCDCTL_USER and ETCDCTL_PASSWORD, or password_file in --rdzv-conf)"
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return "its certificate is not signed by the given authority (cacert in --rdzv-conf)"
    if "Failed parsing HTTP/2" in details:
        return "what answers there is not an etcd v3 endpoint"
    # gRPC: "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:10.0.0.1:2379: Connection refused"
    return re.sub(
        r"^failed to connect to all addresses; last error: \w+: (ipv[46]:\S+: )?(Failed to connect to remote host: )?",
        "",
        details,
    )
