"""The border to etcd: one client over several endpoints, with a deadline on every call.

All methods run on the loop of :mod:`.iothread`. A call is tried once at each endpoint; trying again later is the
caller's business (:mod:`.retry`). What gRPC raises becomes :mod:`.errors`, with one line that a user can read.

A write whose answer was lost may be repeated at the next endpoint, so callers write what bears repeating: values with a
unique attempt in them, conditions that recognise it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from ftlaunch.rendezvous.etcd import messages
from ftlaunch.rendezvous.etcd.errors import EtcdError, Refused, Unreachable
from ftlaunch.rendezvous.etcd.keys import KeyRange
from ftlaunch.rendezvous.etcd.library import Library
from ftlaunch.rendezvous.etcd.settings import EtcdSettings, Tls
from ftlaunch.rendezvous.etcd.wire import Answer, Change, Transaction

FIRST_CALL_S = 1.5
"""How long a call may take at first, always on a connection that has served none: another endpoint may be alive."""

_STRIKES = 2
"""Calls in a row without an answer after which a connection is given up, even if TCP thinks well of it."""

_OPTIONS = (
    # etcd refuses pings more often than every 5 s (--grpc-keepalive-min-time).
    ("grpc.keepalive_time_ms", 7000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", -1),
    # Own connections: certificates are read again whenever one is made.
    ("grpc.use_local_subchannel_pool", 1),
    # http_proxy is meant for the web, not for a service of the cluster.
    ("grpc.enable_http_proxy", 0),
)


class _Link:
    """One connection to one endpoint. Closed when it is given up and its last call has ended."""

    def __init__(self, channel: Any, stubs: Any, target: str) -> None:
        self.channel = channel
        self.target = target
        self.kv = stubs.KVStub(channel)
        self.lease = stubs.LeaseStub(channel)
        self.watch = stubs.WatchStub(channel)
        self.auth = stubs.AuthStub(channel)
        self.proven = False
        self.strikes = 0
        self.users = 0
        self.given_up = False


class EtcdClient:
    """Talks to one etcd cluster."""

    def __init__(self, library: Library, settings: EtcdSettings) -> None:
        self._library = library
        self._settings = settings
        self._endpoints = random.sample(settings.endpoints, len(settings.endpoints))
        self._current = 0
        self._links: dict[int, _Link] = {}
        self._unanswered = 0
        self._token: str | None = None
        """Empty when none is needed, ``None`` before the first and when it was rejected."""
        self._authenticating = asyncio.Lock()

    async def transact(self, transaction: Transaction, timeout_s: float | None = None) -> Answer:
        """Run one transaction. Raises :class:`~.errors.EtcdError`; :class:`~.errors.LeaseGone` when a lease is none."""
        request = messages.transaction(self._library.rpc, transaction)
        return messages.answer(await self._call(lambda link: link.kv.Txn, request, timeout_s))

    async def grant(self, ttl_s: int, lease: int = 0) -> tuple[int, int]:
        """Grant a lease; returns its id and the seconds that the server gave. Raises :class:`~.errors.LeaseExists`."""
        request = self._library.rpc.LeaseGrantRequest(TTL=ttl_s, ID=lease)
        response = await self._call(lambda link: link.lease.LeaseGrant, request, None)
        return int(response.ID), int(response.TTL)

    async def revoke(self, lease: int, timeout_s: float | None = None) -> None:
        """End a lease and delete its keys. Raises :class:`~.errors.LeaseGone` when it was gone already."""
        request = self._library.rpc.LeaseRevokeRequest(ID=lease)
        await self._call(lambda link: link.lease.LeaseRevoke, request, timeout_s)

    async def keep_alive(self, lease: int, timeout_s: float) -> int:
        """Renew a lease; returns the seconds it has now, 0 when it is gone (etcd reports no error for that)."""
        request = self._library.rpc.LeaseKeepAliveRequest(ID=lease)
        response = await self._call(lambda link: _one_shot(link.lease.LeaseKeepAlive), request, timeout_s)
        return int(response.TTL)

    @property
    def is_proven(self) -> bool:
        """Whether the connection that the next call would use has served one already, with the present token."""
        link = self._links.get(self._current)
        return link is not None and link.proven and self._token is not None

    async def watch(self, ranges: Sequence[KeyRange], idle_s: float) -> AsyncGenerator[tuple[Change, ...], None]:
        """Yield what changes in the ranges from now on; an empty tuple first, when the watch stands.

        Asks the server for a sign of life after ``idle_s`` without one. Raises :class:`~.errors.Unreachable` when none
        follows, when the stream breaks, and when there is no proven connection.
        """
        if not self.is_proven:
            raise Unreachable("the connection to etcd was lost")
        link = self._link()
        link.users += 1
        stream = link.watch.Watch(metadata=self._metadata())
        reader = _Reader(stream)
        try:
            for keys in ranges:
                await stream.write(messages.watch_request(self._library.rpc, keys))
            async with contextlib.aclosing(self._read_watch(stream, reader, len(ranges), idle_s)) as batches:
                async for changes in batches:
                    yield changes
        except self._library.aio.AioRpcError as error:
            raise self._failed(link, error) from None
        finally:
            reader.close()
            await self._release(link)

    async def close(self) -> None:
        """Close all connections."""
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.channel.close()

    # --- calls ------------------------------------------------------------------------------------------------------

    async def _call(self, method: Any, request: Any, timeout_s: float | None) -> Any:
        """Try each endpoint once."""
        wanted = self._settings.call_timeout_s if timeout_s is None else timeout_s
        last: EtcdError = Unreachable("no endpoint")
        for _ in self._endpoints:
            try:
                return await self._call_with_token(method, request, wanted)
            except Unreachable as error:
                last = error
        raise last

    async def _call_with_token(self, method: Any, request: Any, timeout_s: float) -> Any:
        link = self._link()
        link.users += 1
        try:
            if self._token is None:
                await self._authenticate(link, None, timeout_s)
            token = self._token
            try:
                return await self._once(link, method(link), request, timeout_s)
            except messages.TokenRejected:
                # Expired, or the server restarted: once more with a new one, then the password is wrong.
                await self._authenticate(link, token, timeout_s)
                return await self._once(link, method(link), request, timeout_s)
        except messages.TokenRejected as error:
            raise Refused(str(error)) from None
        finally:
            await self._release(link)

    async def _once(self, link: _Link, method: Any, request: Any, timeout_s: float) -> Any:
        # Patience grows: a write that got lost when etcd changed its leader is never answered, a slow server is.
        patience = FIRST_CALL_S * 2 ** min(self._unanswered, 10)
        limit = min(timeout_s, patience if link.proven else FIRST_CALL_S)
        try:
            response = await method(request, timeout=limit, metadata=self._metadata())
        except self._library.aio.AioRpcError as error:
            raise self._failed(link, error) from None
        link.proven, link.strikes, self._unanswered = True, 0, 0
        return response

    async def _authenticate(self, link: _Link, rejected: str | None, timeout_s: float) -> None:
        """Get a token in place of the one that was rejected, unless another call has got one meanwhile."""
        credentials = self._settings.credentials
        if credentials is None:
            self._token = ""
            return
        async with self._authenticating:
            if self._token != rejected:
                return
            self._token = None
            request = self._library.rpc.AuthenticateRequest(name=credentials.user, password=credentials.password)
            self._token = str((await self._once(link, link.auth.Authenticate, request, timeout_s)).token)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        # With "hasleader" a member that lost its leader says so instead of leaving us waiting.
        token = (("token", self._token),) if self._token else ()
        return (("hasleader", "true"), *token)

    # --- connections ------------------------------------------------------------------------------------------------

    def _link(self) -> _Link:
        link = self._links.get(self._current)
        if link is None:
            target = self._endpoints[self._current].target
            link = _Link(self._dial(target), self._library.stubs, target)
            self._links[self._current] = link
        return link

    def _dial(self, target: str) -> Any:
        tls = self._settings.tls
        if tls is None:
            return self._library.aio.insecure_channel(target, options=_OPTIONS)
        return self._library.aio.secure_channel(target, self._channel_credentials(tls), options=_OPTIONS)

    def _channel_credentials(self, tls: Tls) -> Any:
        try:
            ca, key, cert = (Path(p).read_bytes() if p else None for p in (tls.ca_file, tls.key_file, tls.cert_file))
        except OSError as error:
            # They were there at the start: being rotated right now.
            raise Unreachable(f"{error.filename}: {error.strerror}") from None
        return self._library.grpc.ssl_channel_credentials(ca, key, cert)

    def _failed(self, link: _Link, error: Any) -> EtcdError:
        """Translate an error and decide what it means for the connection."""
        translated = messages.translate(self._library.grpc.StatusCode, error, link.target)
        if isinstance(translated, Unreachable):
            link.strikes += 1
            self._unanswered += 1
            broken = error.code() is self._library.grpc.StatusCode.UNAVAILABLE
            if broken or not link.proven or link.strikes >= _STRIKES:
                self._give_up(link)
            if self._links.get(self._current) in (link, None):
                self._current = (self._current + 1) % len(self._endpoints)
        return translated

    def _give_up(self, link: _Link) -> None:
        link.given_up = True
        for index, known in list(self._links.items()):
            if known is link:
                del self._links[index]

    async def _release(self, link: _Link) -> None:
        link.users -= 1
        # Closing cancels the calls of others, and gRPC reports that to them as if they had been cancelled themselves.
        if link.given_up and link.users == 0:
            await link.channel.close()

    # --- watching ---------------------------------------------------------------------------------------------------

    async def _read_watch(
        self, stream: Any, reader: _Reader, ranges: int, idle_s: float
    ) -> AsyncGenerator[tuple[Change, ...], None]:
        rpc = self._library.rpc
        created, asked = 0, False
        while True:
            response = await reader.next(idle_s)
            if response is None:
                if asked:
                    raise Unreachable(f"no sign of life from etcd for {2 * idle_s:g} s")
                asked = True
                await stream.write(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))
                continue
            asked = False
            self._check_watch(response)
            created += response.created
            if response.created and created == ranges:
                yield ()
            if response.events:
                yield messages.changes(response)

    def _check_watch(self, response: Any) -> None:
        if response.canceled or response.compact_revision:
            # Also what an expired token looks like.
            self._token = None
            raise Unreachable(f"etcd ended the watch: {response.cancel_reason or 'no reason given'}")


class _Reader:
    """Reads a stream with a limit on the wait.

    gRPC cancels the whole stream when a read is cancelled, so an unfinished read is kept for the next call.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._reading: asyncio.Future[Any] | None = None

    async def next(self, timeout_s: float) -> Any:
        """One message, or ``None`` after ``timeout_s``. Raises what ended the stream."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._stream.read())
        done, _ = await asyncio.wait({self._reading}, timeout=timeout_s)
        if not done:
            return None
        response, self._reading = self._reading.result(), None
        if not hasattr(response, "header"):
            raise Unreachable("etcd ended the watch")
        return response

    def close(self) -> None:
        """End the stream; what the read still brings is of no interest."""
        self._stream.cancel()
        if self._reading is not None:
            self._reading.add_done_callback(lambda reading: reading.cancelled() or reading.exception())


def _one_shot(method: Any) -> Any:
    """Use a stream for one question and one answer."""

    async def call(request: Any, timeout: float, metadata: Any) -> Any:
        stream = method(timeout=timeout, metadata=metadata)
        try:
            await stream.write(request)
            response = await stream.read()
            if not hasattr(response, "TTL"):
                await stream  # raises what ended it
            return response
        finally:
            stream.cancel()

    return call
