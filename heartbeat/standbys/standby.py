"""A warm worker: imports what the ranks will need, waits, and becomes a rank when it is told to.

Talks JSON frames (:mod:`.frames`) with the agent over the descriptor ``FTLAUNCH_STANDBY_FD``, in this order:

* agent: ``{"preload": [names], "environment": {name: value or null}, "pace": {"share": 0.2},
  "exclude": [names], "cuda": false}``, once. ``environment`` is what the script changes before its imports;
  ``share`` of a core that importing may use.
* standby: ``{"ready": number of modules, "failed": {name: why}}``; ``"cuda"`` says why there is no CUDA context where
  one was asked for. With ``"unfit": why`` it wants to be ended: one of the modules did something at import that a rank
  must not inherit. The modules in ``"exclude"``, named in ``failed`` as well, the outermost importer last, have to be
  excluded from then on.
* agent: ``{"go": {"kind", "target", "args", "environment", "cwd"}}``, and closes its end.

The agent's end closed without an order means that nobody will need this process: it ends, never with 0, which would be
a rank's success. What a standby cannot make look like a cold start (an environment variable that was read in C, a
module of the script's folder with the name of a preloaded one, what an unfit module did) is started cold in its place,
by exec: same process, same order, only slower.
"""

from __future__ import annotations

import os
import resource
import sys
from _socket import socket
from select import POLLIN, poll

from ftlaunch.heartbeat import farewell, hooks, run_main, ties
from ftlaunch.heartbeat.client import CLIENT
from ftlaunch.heartbeat.deathpipe import call_libc
from ftlaunch.heartbeat.descriptors import high_descriptor
from ftlaunch.heartbeat.harmless import Harmless
from ftlaunch.heartbeat.order import Order
from ftlaunch.heartbeat.standbys import cuda_context, idle, pacing
from ftlaunch.heartbeat.standbys.warm import Environ, WarmStart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

FIXED_AT_START = (
    *("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_TUNABLES", "FTLAUNCH_HOOKS"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_"),
)
"""Variables read by the interpreter or by libraries in C, with no way to have them read again."""
_NOT_NEEDED = 1
_CHUNK = 1 << 16


class Channel:
    """The connection to the agent."""

    def __init__(self, fd: int) -> None:
        from ftlaunch.heartbeat.standbys import frames

        self._socket = socket(fileno=fd)
        self._socket.setblocking(True)
        self._encode = frames.encode
        self._reader = frames.FrameReader()
        self._waiting: list[dict[str, Any]] = []
        self._error = frames.FrameError

    def receive(self) -> dict[str, Any]:
        """The next message. Ends the process at end of file."""
        while not self._waiting:
            self._waiting += self._read()
        return self._waiting.pop(0)

    def pause(self, seconds: float) -> None:
        """Let that much time pass, less once something has arrived. Ends the process at end of file."""
        readable = poll()
        readable.register(self._socket, POLLIN)
        if not self._waiting and readable.poll(seconds * 1000):
            self._waiting += self._read()

    def _read(self) -> list[dict[str, Any]]:
        try:
            data = self._socket.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            os._exit(_NOT_NEEDED)
        try:
            return self._reader.feed(data)
        except self._error as error:
            print(f"ftlaunch: standby cannot understand its agent: {error}", file=sys.stderr)
            os._exit(1)

    def send(self, message: dict[str, Any]) -> None:
        """Send whole. Nobody may be listening any more: what was said last, an order or nothing, is then received."""
        with Harmless():
            self._socket.sendall(self._encode(message))

    def close(self) -> None:
        """The order came: nothing more will."""
        self._socket.close()


class Surroundings:
    """What a process can change about itself and an order must find as it was."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self._umask = os.umask(0o77)
        os.umask(self._umask)
        self._limits = {number: resource.getrlimit(number) for number in _limit_numbers()}
        self._outputs: list[tuple[int, int]] = []

    def mute(self) -> None:
        """Send what modules print at import nowhere: a standby is no rank, and has no place in its output."""
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        for fd in (1, 2):
            try:
                if not os.isatty(fd):
                    self._outputs.append((fd, high_descriptor(os.dup(fd))))
                    os.dup2(null, fd)
            except OSError:
                # Closed: there is no output to keep clean.
                continue
        os.close(null)

    def restore(self) -> None:
        """Put everything back that does not need the modules."""
        for stream in (sys.stdout, sys.stderr):
            with Harmless():
                stream.flush()
        # What C code has printed lies in a buffer of its own.
        call_libc("fflush", 0)
        for fd, kept in self._outputs:
            os.dup2(kept, fd)
            os.close(kept)
        self._outputs.clear()
        os.umask(self._umask)
        for number, limit in self._limits.items():
            if resource.getrlimit(number) != limit:
                resource.setrlimit(number, limit)


def _limit_numbers() -> list[int]:
    return [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


class Preloader:
    """Imports the modules of one list."""

    def __init__(self, request: dict[str, Any], pacer: pacing.Pacer, denied: idle.Denied) -> None:
        self.loaded = 0
        self.failed: dict[str, str] = {}
        self.unfit = ""
        self.culprits: list[str] = []
        self._names = [name for name in request.get("preload", ()) if isinstance(name, str)]
        self._denied = denied
        self._watch = idle.Watch(allow_devices=bool(request.get("cuda")))
        self._pacer = pacer

    def run(self) -> None:
        """Import one after the other until all are there or one of them is unfit."""
        for name in self._names:
            if name in sys.modules:
                self.loaded += 1
            elif self._denied.covers(name):
                self.failed[name] = "not imported ahead: on the list of modules that act at import"
            else:
                package = _outermost_missing(name)
                self._load(name)
                self.unfit = self._pacer.offence or self._watch.difference()
                if self.unfit:
                    self.culprits = self._pacer.offenders or [package]
                    self.failed.update(dict.fromkeys(self.culprits, self.unfit))
                    return

    def _load(self, name: str) -> None:
        try:
            __import__(name)
            self.loaded += 1
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - modules exit, too
            self.failed[name] = f"{type(error).__name__}: {error}"[:300]


def _outermost_missing(name: str) -> str:
    """The outermost parent of a module that is not loaded yet: what an import of it begins with."""
    parts = name.split(".")
    parents = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return next((parent for parent in parents if parent not in sys.modules), name)


def wait_for_order() -> Order:
    """Preload and wait. Returns what to run once everything looks as if nothing had happened."""
    surroundings = Surroundings()
    bonds = ties.take()
    fd = os.environ.pop("FTLAUNCH_STANDBY_FD", "")
    if not fd.isdecimal():
        print("ftlaunch: a standby is started by the agent: FTLAUNCH_STANDBY_FD is missing", file=sys.stderr)
        sys.exit(2)
    ties.tie(bonds)
    CLIENT.silence()
    # Before the modules register their own exit handlers, as in a cold start.
    farewell.arrange()
    hooks.install()
    warm = WarmStart()
    channel = Channel(high_descriptor(int(fd)))
    surroundings.mute()
    given, assumed = _prepare(channel, warm)
    surroundings.restore()
    channel.close()
    order = Order(str(given["kind"]), str(given["target"]), [str(each) for each in given.get("args", ())])
    environment = {str(key): str(value) for key, value in given["environment"].items()}
    _change_folder(given.get("cwd"))
    if _why_cold(order, environment, surroundings.environment, assumed):
        _start_cold(order, environment, bonds)
    _set_environment(environment)
    ties.bind(ties.take().affinity)
    os.environ.pop("FTLAUNCH_STANDBY_FD", None)
    warm.chill(through_runpy=run_main.needs_runpy(order.kind, order.target))
    return order


class Assumed:
    """What the preloaded modules went by: it must hold for the order, too."""

    def __init__(self) -> None:
        self.environment: dict[str, str | None] = {}
        """Variables that were read, with the value found then."""
        self.names: set[str] = set()
        """Top-level modules that were looked for outside the script's folder."""
        self.cuda = False
        """The CUDA driver has read its variables."""
        self.unfit = ""
        """What one of them did that a rank must not inherit."""


def _prepare(channel: Channel, warm: WarmStart) -> tuple[dict[str, Any], Assumed]:
    """Everything up to the order: returns it, and what the process has become on the way."""
    assumed = Assumed()
    request = channel.receive()
    denied = idle.Denied(request.get("exclude", ()))
    pacer = pacing.Pacer(channel.pause, denied)
    learned = request.get("environment", {})
    _apply(learned)
    environ: Any = os.environ
    plain = type(environ)
    environ.__class__ = Environ
    environ.begin(idle.EACH_GENERATION_ANEW, lambda name: pacer.blame(f"reads {name} at import"))
    pacer.on_import = environ.forget_walk
    pacer.slow_down(request.get("pace", {}))
    sys.meta_path.insert(0, pacer)
    preloader = Preloader(request, pacer, denied)
    preloader.run()
    sys.meta_path.remove(pacer)
    pacer.on_import = pacing.nothing
    # Before anything starts threads, which would inherit them.
    warm.cpus.chill()
    seen, warm.environment_writes = environ.end()
    environ.__class__ = plain
    report: dict[str, Any] = {"ready": preloader.loaded, "failed": preloader.failed}
    if preloader.unfit:
        report.update(unfit=preloader.unfit, exclude=preloader.culprits)
    elif request.get("cuda"):
        report["cuda"] = cuda_context.create()
    channel.send(report)
    order = channel.receive()["go"]
    assumed.environment = {key: value for key, value in seen.items() if key not in learned}
    assumed.names = pacer.asked
    assumed.unfit = preloader.unfit
    assumed.cuda = "cuda" in report
    return order, assumed


def _apply(changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = str(value)


def _set_environment(wanted: dict[str, str]) -> None:
    for key in list(os.environ):
        if key not in wanted:
            del os.environ[key]
    for key, value in wanted.items():
        if os.environ.get(key) != value:
            os.environ[key] = value


def _change_folder(path: object) -> None:
    if not isinstance(path, str):
        return
    try:
        os.chdir(path)
    except OSError as error:
        print(f"ftlaunch: cannot enter the working directory {path!r}: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def _why_cold(
    order: Order,
    environment: dict[str, str],
    at_start: dict[str, str],
    assumed: Assumed,
) -> str:
    """Why this process cannot pass for a cold start of the order; "" when it can."""
    if order.kind == "binary":
        return "not Python"
    if assumed.unfit:
        return assumed.unfit
    fixed = FIXED_AT_START + (cuda_context.PREFIXES if assumed.cuda else ())
    for key in sorted(at_start.keys() | environment.keys()):
        if key.startswith(fixed) and at_start.get(key) != environment.get(key):
            return f"{key} is another one"
    for key, value in assumed.environment.items():
        if environment.get(key) != value:
            return f"{key} was read at import and is another one"
    shadowed = _modules_in(run_main.first_path_entry(order.kind, order.target)) & assumed.names
    return f"the script has its own {min(shadowed)}" if shadowed else ""


def _modules_in(folder: str | None) -> set[str]:
    """Top-level names that a folder (or zip file) on ``sys.path`` would provide."""
    try:
        names = os.listdir(folder) if folder else []
    except OSError:
        # A zip file, or nothing: then nothing is imported from there by name before the script itself.
        return set()
    return {name.partition(".")[0] for name in names}


def _start_cold(order: Order, environment: dict[str, str], bonds: ties.Ties) -> NoReturn:
    passed = {
        "FTLAUNCH_DEATH_FD": bonds.death_fd,
        "FTLAUNCH_DUMP_FD": bonds.dump_fd,
        "FTLAUNCH_FLAGS_FD": bonds.flags_fd,
    }
    for key, fd in passed.items():
        environment.pop(key, None)
        if fd is not None:
            os.set_inheritable(fd, True)
            environment[key] = str(fd)
    if bonds.agent_pid is not None:
        environment["FTLAUNCH_AGENT_PID"] = str(bonds.agent_pid)
    environment.pop("FTLAUNCH_STANDBY_FD", None)
    command = [*sys.orig_argv[: len(sys.orig_argv) - 1], order.kind, order.target, *order.arguments]
    os.execve(sys.executable, command, environment)
