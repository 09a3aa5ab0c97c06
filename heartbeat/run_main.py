"""Runs a script, module, folder or zip file as ``__main__``, so that it cannot tell from ``python train.py``.

Follows what CPython's ``Py_RunMain`` does: the same ``sys.argv``, ``sys.path[0]``, names in ``__main__``, messages and
exit codes. Modules, folders and zip files go through the same function of :mod:`runpy` that the interpreter calls.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
from _frozen_importlib_external import SourceFileLoader, SourcelessFileLoader

from ftlaunch.heartbeat import farewell, uncaught

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType

_NO_SUCH_FILE = 2


def run(kind: str, target: str, arguments: list[str]) -> None:
    """Run to the end. Raises what the program raised, already printed, so that the interpreter ends as it would."""
    farewell.arrange()
    try:
        if kind == "module":
            _run_module(target, arguments)
        elif _is_importable(target):
            _run_package(target, arguments)
        else:
            _run_script(target, arguments)
    except BaseException as error:
        uncaught.report(error)
        raise


def pretend_command_line(kind: str, target: str, arguments: list[str]) -> None:
    """Give ``sys.orig_argv`` the form that a direct start would have."""
    ours = len(sys.orig_argv) - len(sys.argv)
    program = ["-m", target] if kind == "module" else [target]
    sys.orig_argv[ours:] = [*program, *arguments]


def first_path_entry(kind: str, target: str) -> str | None:
    """What the interpreter would insert as ``sys.path[0]``; None when it was told not to (``-P``, ``-I``)."""
    safe = sys.flags.isolated or getattr(sys.flags, "safe_path", False)
    if kind == "module":
        return None if safe else os.getcwd()
    if _is_importable(target):
        return _absolute(target)
    return None if safe else os.path.dirname(os.path.realpath(target))


def _run_module(name: str, arguments: list[str]) -> None:
    entry = first_path_entry("module", name)
    if entry is not None:
        sys.path.insert(0, entry)
    sys.argv[:] = ["-m", *arguments]
    _new_main()
    import runpy

    runpy._run_module_as_main(name, True)  # type: ignore[attr-defined]


def _run_package(path: str, arguments: list[str]) -> None:
    sys.path.insert(0, _absolute(path))
    sys.argv[:] = [path, *arguments]
    _new_main()
    import runpy

    runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]


def _run_script(path: str, arguments: list[str]) -> None:
    entry = first_path_entry("script", path)
    if entry is not None:
        sys.path.insert(0, entry)
    sys.argv[:] = [path, *arguments]
    file = _absolute(path)
    source = _read(file)
    namespace = _new_main().__dict__
    namespace["__file__"] = file
    if sys.version_info < (3, 15):
        namespace["__cached__"] = None
    compiled = path.endswith(".pyc")
    namespace["__loader__"] = (SourcelessFileLoader if compiled else SourceFileLoader)("__main__", file)
    try:
        code = _load_compiled(source) if compiled else compile(source, file, "exec", dont_inherit=True)
        del source
        exec(code, namespace)  # noqa: S102 - this is what a launcher is for
    finally:
        # The interpreter takes them away as well, before threads are joined and atexit runs.
        namespace.pop("__file__", None)
        namespace.pop("__cached__", None)


def _new_main() -> ModuleType:
    main = type(sys)("__main__")
    names: dict[str, object] = {"__builtins__": builtins}
    if sys.version_info < (3, 14):
        names["__annotations__"] = {}
    main.__dict__.update(names)
    sys.modules["__main__"] = main
    return main


def _absolute(path: str) -> str:
    """As the interpreter makes it: joined to the working directory, not normalised."""
    if os.path.isabs(path):
        return path
    try:
        folder = os.getcwd()
    except OSError:
        return path
    return os.path.join(folder, path)


def _read(file: str) -> bytes:
    try:
        with io.open_code(file) as stream:
            return stream.read()
    except OSError as error:
        line = f"{sys.executable}: can't open file {file!r}: [Errno {error.errno}] {error.strerror}"
        print(line, file=sys.stderr)
        raise SystemExit(_NO_SUCH_FILE) from None


def _load_compiled(data: bytes) -> CodeType:
    import marshal
    from _frozen_importlib_external import MAGIC_NUMBER

    if data[:4] != MAGIC_NUMBER:
        raise RuntimeError("Bad magic number in .pyc file")
    code: CodeType = marshal.loads(memoryview(data)[16:])
    return code


def needs_runpy(kind: str, target: str) -> bool:
    """Whether the interpreter would import :mod:`runpy` for it: a module, a folder or a zip file."""
    return kind == "module" or _is_importable(target)


def _is_importable(path: str) -> bool:
    """Whether some path hook takes ``path`` as a place of modules: a folder or a zip file."""
    for hook in sys.path_hooks:
        try:
            hook(path)
        except ImportError:
            continue
        return True
    return False
