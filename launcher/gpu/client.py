"""The agent's side of the helper: every question has a deadline, and one that is missed ends the helper for good."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ftlaunch.launcher.gpu.model import DeviceHealth, DeviceSample, Holder, ProcessUse, XidEvent
from ftlaunch.launcher.gpu.nvml_errors import NvmlDead, NvmlError, NvmlHung, NvmlUnavailable
from ftlaunch.launcher.host.visible import Device
from ftlaunch.launcher.processes import bystanders

OPEN_TIMEOUT_S = 30.0
"""Initialising eight GPUs without persistence mode takes many seconds."""
CALL_TIMEOUT_S = 5.0
# The helper imports what the agent imports, from wherever it did; never from the working directory.
_BOOT = """\
import sys
sys.path[:] = sys.argv.pop().split(":")
try:
    from ftlaunch.launcher.gpu.helper import main
except Exception as error:
    print(f"{type(error).__name__}: {error}")
    sys.exit(1)
main()
"""


class NvmlClient:
    """Asks the helper. Once one question was not answered in time, every other raises :class:`NvmlHung` at once."""

    def __init__(self, child: bystanders.Bystander, on_xid: Callable[[XidEvent], None], timeout_s: float) -> None:
        self._child = child
        self._on_xid = on_xid
        self._timeout_s = timeout_s
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._buffer = b""
        self._last_line = ""
        self._serial = 0
        self._dead: NvmlDead | None = None
        self._output: bystanders.Output | None = None

    @property
    def pid(self) -> int:
        """The helper's pid."""
        return self._child.pid

    @property
    def replaceable(self) -> bool:
        """Whether the helper has ended without the driver's fault, so that another one may do."""
        return self._dead is not None and not isinstance(self._dead, NvmlHung)

    def watch(self) -> None:
        """Read answers from now on."""
        os.set_blocking(self._child.stdin, False)
        self._output = bystanders.Output(self._child.stdout, self._received)
        self._output.watch()
        self._output.ended.add_done_callback(self._ended)

    async def open(
        self, visible: str | None, order: str, marker: str, timeout_s: float = OPEN_TIMEOUT_S
    ) -> tuple[tuple[Device, ...], str]:
        """Initialise NVML; the visible devices and a note for the user, mostly empty.

        Raises :class:`NvmlUnavailable` where there is nothing to ask, :class:`NvmlError` or :class:`NvmlDead`.
        """
        value = await self._ask("open", timeout_s, visible=visible, order=order, marker=marker)
        return tuple(Device(**device) for device in value["devices"]), value["note"]

    async def sample(self) -> tuple[DeviceSample, ...]:
        """Memory and processes of all visible devices."""
        return tuple(_sample(fields) for fields in await self._ask("sample", self._timeout_s))

    async def health(self) -> tuple[DeviceHealth, ...]:
        """Error counters of all visible devices."""
        return tuple(_health(fields) for fields in await self._ask("health", self._timeout_s))

    async def find_holders(self, kill: bool, skip: Iterable[int] = (), **options: str) -> tuple[Holder, ...]:
        """Who has device files open; ``kill`` sends SIGKILL to those of this run, except ``skip``."""
        value = await self._ask("holders", self._timeout_s, kill=kill, skip=sorted(skip), **options)
        return tuple(Holder(**fields) for fields in value)

    async def close(self) -> None:
        """End the helper, within about a second."""
        self._die(NvmlDead("closed"))
        await self._child.wait(1.0)

    async def _ask(self, op: str, timeout_s: float, **arguments: Any) -> Any:
        if self._dead is not None:
            raise self._dead
        self._serial += 1
        serial = self._serial
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[serial] = answer
        try:
            self._send({"id": serial, "op": op, "with": arguments})
            return await asyncio.wait_for(answer, timeout_s)
        except asyncio.TimeoutError:
            hung = NvmlHung(f"the NVIDIA driver did not answer within {timeout_s:g} s (asked for: {op})")
            self._die(hung)
            raise hung from None
        finally:
            self._waiting.pop(serial, None)

    def _send(self, question: Mapping[str, Any]) -> None:
        line = json.dumps(question).encode() + b"\n"
        try:
            if os.write(self._child.stdin, line) != len(line):
                raise BlockingIOError
        except OSError:
            dead = NvmlDead("the process that asks the NVIDIA driver does not listen any more")
            self._die(dead)
            raise dead from None

    def _received(self, chunk: bytes) -> None:
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            if not line.startswith(b"{"):
                # A helper that can't start says why.
                self._last_line = line.decode(errors="replace").strip() or self._last_line
                continue
            message = json.loads(line)
            if "xid" in message:
                self._on_xid(XidEvent(**message["xid"]))
                continue
            waiter = self._waiting.get(message["id"])
            if waiter is not None and not waiter.done():
                if "error" in message:
                    kind = NvmlUnavailable if message.get("unavailable") else NvmlError
                    waiter.set_exception(kind(message["error"]))
                else:
                    waiter.set_result(message["value"])

    def _ended(self, _: object) -> None:
        last = f": {self._last_line}" if self._last_line else ""
        self._die(NvmlDead(f"the process that asks the NVIDIA driver has ended{last}"))

    def _die(self, dead: NvmlDead) -> None:
        if self._dead is not None:
            return
        self._dead = dead
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(dead)
        self._child.kill()
        if self._output is not None and not self._output.ended.done():
            self._output.stop()
        self._child.close()


def start_client(
    environment: Mapping[str, str],
    on_xid: Callable[[XidEvent], None] = lambda event: None,
    timeout_s: float = CALL_TIMEOUT_S,
) -> NvmlClient:
    """Start a helper; about 1 ms here, 0.1 s until it listens. Raises :class:`SpawnError`."""
    # Entries that are no files belong to import hooks, such as those of editable installs.
    paths = ":".join(os.path.abspath(path) if os.path.exists(path) else path for path in sys.path if path)
    child = bystanders.start([sys.executable, "-c", _BOOT, paths], environment, stdin=True)
    client = NvmlClient(child, on_xid, timeout_s)
    client.watch()
    return client


def _sample(fields: Mapping[str, Any]) -> DeviceSample:
    processes = fields["processes"]
    listed = None if processes is None else tuple(ProcessUse(**process) for process in processes)
    return DeviceSample(Device(**fields["device"]), fields["used"], fields["total"], listed, fields["lost"])


def _health(fields: Mapping[str, Any]) -> DeviceHealth:
    links = fields["nvlinks_up"]
    return DeviceHealth(
        **{
            **fields,
            "device": Device(**fields["device"]),
            "nvlinks_up": None if links is None else tuple(links),
        }
    )
