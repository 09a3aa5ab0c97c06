"""Print everything that a script can see of how it was started, as one JSON object. Compared between starts."""

import builtins as _builtins

_names = sorted(name for name in globals() if name != "_builtins")
_globals = {name: repr(globals()[name]) for name in _names}

import sys as _sys  # noqa: E402

_modules = sorted(
    name
    for name in _sys.modules
    if name.partition(".")[0] in ("json", "random", "logging", "threading", "colorsys", "numpy", "torch", "decimal")
)
_meta_path = len(_sys.meta_path)

import _warnings  # noqa: E402
import gc  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402

_filters = repr(_warnings.filters)
_environment = dict(os.environ)

import json  # noqa: E402
import logging  # noqa: E402
import random  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402


class Pickled:
    """Something to find again by its name."""


def _status(*names: str) -> dict[str, str]:
    with open("/proc/self/status") as status:
        fields = dict(line.rstrip("\n").split(":\t", 1) for line in status if ":\t" in line)
    return {name: fields[name] for name in names}


def _spec() -> object:
    spec = globals().get("__spec__")
    return spec and [spec.name, spec.origin, spec.parent]


def _low_descriptors() -> list[int]:
    """Of the range that scripts use; ours are far above."""
    return [int(name) for name in os.listdir("/proc/self/fd") if int(name) < 900]


def _streams() -> list[object]:
    return [
        [type(each).__name__, each.encoding, each.errors, each.line_buffering, each.write_through, each.fileno()]
        for each in (sys.stdin, sys.stdout, sys.stderr)
    ]


_seen = {
    "globals": _globals,
    "main": [type(sys.modules["__main__"]).__name__, sys.modules["__main__"].__dict__ is globals()],
    "loader": repr(type(globals()["__loader__"])),
    "spec": _spec(),
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "path": sys.path,
    "cwd": os.getcwd(),
    "environment": {
        key: value
        for key, value in _environment.items()
        if not key.startswith("FTLAUNCH_") and key not in ("LOCAL_RANK", "RANK", "_", "PWD", "OLDPWD")
    },
    "private": sorted(key for key in _environment if key in ("FTLAUNCH_DEATH_FD", "FTLAUNCH_STANDBY_FD")),
    "modules": _modules,
    "flags": repr(sys.flags),
    "warnoptions": sys.warnoptions,
    "filters": _filters,
    "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
    "limits": [sys.getrecursionlimit(), sys.getswitchinterval()],
    "gc": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug()],
    "threads": [threading.active_count(), threading.current_thread().name, len(os.listdir("/proc/self/task"))],
    "main_thread": threading.current_thread() is threading.main_thread(),
    "logging": [repr(logging.getLogger().handlers), logging.getLogger().level, logging.root.manager.disable],
    "signals": {
        number: str(signal.getsignal(number)) for number in range(1, 31) if signal.getsignal(number) is not None
    },
    "masks": _status("SigBlk", "SigIgn"),
    "descriptors": _low_descriptors(),
    "rlimits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if "RLIMIT_" in name},
    "affinity": sorted(os.sched_getaffinity(0)),
    "scheduling": [os.sched_getscheduler(0), os.nice(0), os.getpriority(os.PRIO_PROCESS, 0)],
    "umask": f"{os.umask(0o22):o}",
    "streams": _streams(),
    "encoding": [sys.getfilesystemencoding(), sys.getdefaultencoding()],
    "builtins": sorted(vars(_builtins)),
    "tracing": [sys.gettrace(), sys.getprofile()],
    "random": repr(type(random.random())),
    "pickled": __import__("pickle").loads(__import__("pickle").dumps(Pickled())).__class__ is Pickled,
    "source": "def _low_descriptors" in __import__("inspect").getsource(sys.modules["__main__"]),
}
print(__import__("re").sub("0x[0-9a-f]+", "0x", json.dumps(_seen, default=str)))
