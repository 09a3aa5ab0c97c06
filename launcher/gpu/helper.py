"""The process that talks to the driver: one line of JSON in, one out, each question answered in a thread of its own.

It ends when its standard input does, so with the agent, also when a driver call hangs. Lines out are answers
(``{"id": 1, "value": …}`` or ``{"id": 1, "error": "…", "unavailable": true}``) and news (``{"xid": {…}}``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.launcher.gpu.holders import DEVICE_GLOB, find_holders, kill_marked
from ftlaunch.launcher.gpu.nvml import Nvml, open_nvml
from ftlaunch.launcher.gpu.nvml_errors import NvmlError, NvmlUnavailable
from ftlaunch.launcher.host.visible import Device, choose


class Helper:
    """Answers questions; state is set once by the question ``open``."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._nvml: Nvml | None = None
        self._devices: tuple[Device, ...] = ()
        self._marker = ""

    def answer(self, question: Mapping[str, Any]) -> None:
        """Answer one question, whatever happens: silence would be taken for a driver that hangs."""
        handler: Callable[..., Any] | None = getattr(self, f"do_{question['op']}", None)
        try:
            if handler is None:
                raise NvmlError(f"unknown question {question['op']}")
            self._tell({"id": question["id"], "value": handler(**question.get("with", {}))})
        except NvmlError as error:
            unavailable = isinstance(error, NvmlUnavailable)
            self._tell({"id": question["id"], "error": str(error), "unavailable": unavailable})
        except Exception as error:  # noqa: BLE001 - the top level of this thread
            text = f"{type(error).__name__}: {error}"
            self._tell({"id": question["id"], "error": text, "unavailable": False})

    def do_open(self, visible: str | None, order: str, marker: str) -> dict[str, Any]:
        """Initialise NVML and choose the devices."""
        self._nvml = open_nvml()
        choice = choose(self._nvml.devices(), visible, order)
        self._devices = choice.devices
        self._marker = marker
        if self._devices:
            threading.Thread(target=self._report_xids, daemon=True).start()
        return {"devices": [dataclasses.asdict(device) for device in choice.devices], "note": choice.note}

    def do_sample(self) -> list[Any]:
        """Memory and processes of all devices."""
        return [dataclasses.asdict(sample) for sample in self._opened().sample(self._devices, self._marker)]

    def do_health(self) -> list[Any]:
        """Error counters of all devices."""
        return [dataclasses.asdict(health) for health in self._opened().health(self._devices)]

    def do_holders(self, kill: bool, skip: list[int], device_glob: str = DEVICE_GLOB) -> list[Any]:
        """Who has device files open; needs no driver."""
        holders = find_holders(self._marker, {*skip, os.getppid()}, device_glob)
        if kill:
            kill_marked(holders, self._marker)
        return [dataclasses.asdict(holder) for holder in holders]

    def _opened(self) -> Nvml:
        if self._nvml is None:
            raise NvmlError("NVML is not open")
        return self._nvml

    def _report_xids(self) -> None:
        with contextlib.suppress(NvmlError):
            for event in self._opened().xid_events(self._devices):
                self._tell({"xid": dataclasses.asdict(event)})

    def _tell(self, message: Mapping[str, Any]) -> None:
        self._write(json.dumps(message, separators=(",", ":")).encode() + b"\n")


def main() -> None:
    """Answer until standard input ends. Does not return: threads may be stuck in the driver."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        # The agent decides when it ends; a signal to the whole job must not look like a dead driver.
        signal.signal(signum, signal.SIG_IGN)
    os.chdir("/")
    answers = os.dup(1)
    # What a library prints must not get between the answers.
    os.dup2(2, 1)
    lock = threading.Lock()

    def write(line: bytes) -> None:
        with lock:
            while line:
                line = line[os.write(answers, line) :]

    helper = Helper(write)
    for line in sys.stdin.buffer:
        threading.Thread(target=helper.answer, args=(json.loads(line),), daemon=True).start()
    os._exit(0)


if __name__ == "__main__":
    main()
