"""What holds for the project as a whole: what is installed, who imports whom, sizes, clocks, words."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("launcher", "heartbeat", "rendezvous")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_MEDIAN_FUNCTION_LINES = 12
CLOCKS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "clock_gettime"}
# Besides launcher/clock.py: the worker's side stamps its own beats, a rendezvous counts its leases, and the guardian
# imports nothing of ours.
CLOCK_READERS = {"launcher/clock.py", "launcher/processes/guardian.py", "rendezvous/common/clock.py"}
CLOCK_READER_FOLDERS = ("heartbeat/",)


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield f"{name_of(path)}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1


def imported(path: Path) -> set[str]:
    """Every module that a file names in an import, at whatever depth in the code."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy: a build folder in the tree would bring old files along."""
    copy, target = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for folder in PACKAGES:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--no-index", "-q"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "-w", str(target), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = target.glob("*.whl")
    return zipfile.ZipFile(built)


def test_wheel_installs_one_import_name_with_every_source_file(wheel: zipfile.ZipFile) -> None:
    with wheel:
        names = wheel.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ftlaunch"}
    # No ftlaunch/__init__.py: nothing but the three packages is importable.
    assert {name.split("/")[1] for name in names if name.startswith("ftlaunch/")} == set(PACKAGES)
    assert {name.removeprefix("ftlaunch/") for name in names if name.endswith(".py")} == set(
        map(name_of, sources(*PACKAGES))
    )
    assert {f"ftlaunch/{package}/py.typed" for package in PACKAGES} <= set(names)


def test_generic_names_are_not_importable_from_elsewhere() -> None:
    code = "import importlib.util as u, sys; sys.exit(any(u.find_spec(n) for n in sys.argv[1:]))"
    assert subprocess.run([sys.executable, "-c", code, *PACKAGES], cwd="/").returncode == 0


@pytest.mark.parametrize("command", ["ftlaunch", "ftctl"])
def test_console_scripts_are_defined_and_point_to_a_function(command: str) -> None:
    from importlib.metadata import entry_points

    (entry,) = [entry for entry in entry_points(group="console_scripts") if entry.name == command]
    assert callable(entry.load())


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [("heartbeat", ("launcher", "rendezvous")), ("rendezvous", ("launcher", "heartbeat"))],
)
def test_packages_depend_in_one_direction_only(package: str, forbidden: tuple[str, ...]) -> None:
    names = tuple(f"ftlaunch.{other}" for other in forbidden)
    wrong = [
        f"{name_of(path)} imports {module}"
        for path in sources(package)
        for module in imported(path)
        if module.startswith(names)
    ]
    assert not wrong


def parts_of(package: str) -> dict[str, set[str]]:
    """What each folder or module at the top of a package imports of the others, in whatever place of its code."""
    prefix, found = f"ftlaunch.{package}.", {}
    for path in sources(package):
        part = path.relative_to(ROOT / package).with_suffix("").parts[0]
        used = {name.removeprefix(prefix).split(".")[0] for name in imported(path) if name.startswith(prefix)}
        found.setdefault(part, set()).update(used - {part})
    return {part: used & found.keys() for part, used in found.items()}


@pytest.mark.parametrize("package", PACKAGES)
def test_parts_of_a_package_import_each_other_without_a_cycle(package: str) -> None:
    parts = parts_of(package)
    while parts:
        free = {part for part, used in parts.items() if not used}
        assert free, f"these import each other: {parts}"
        parts = {part: used - free for part, used in parts.items() if part not in free}


def test_no_module_imports_torch_or_grpc_where_the_agent_would_load_it() -> None:
    wrong = [
        f"{name_of(path)} imports {alias}"
        for path in sources("launcher", "rendezvous")
        for node in parsed(path).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names])
        if alias.split(".")[0] in {"torch", "grpc"}
    ]
    assert not wrong


def test_files_and_functions_stay_small() -> None:
    files = {name_of(path): path.read_text(encoding="utf-8").count("\n") for path in sources(*PACKAGES)}
    assert {name: lines for name, lines in files.items() if lines > MAX_FILE_LINES} == {}
    sizes = dict(item for path in sources(*PACKAGES) for item in functions(path))
    assert {name: lines for name, lines in sizes.items() if lines > MAX_FUNCTION_LINES} == {}
    assert sorted(sizes.values())[len(sizes) // 2] < MAX_MEDIAN_FUNCTION_LINES


def test_clocks_are_read_only_where_allowed() -> None:
    readers = set()
    for path in sources(*PACKAGES):
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
                continue
            reads = (node.value.id == "time" and node.attr in CLOCKS) or (
                node.value.id in {"datetime", "date"} and node.attr in {"now", "utcnow", "today"}
            )
            if reads and not name_of(path).startswith(CLOCK_READER_FOLDERS):
                readers.add(name_of(path))
    assert readers - CLOCK_READERS == set()


def test_nobody_imports_clock_functions_by_name() -> None:
    wrong = [
        name_of(path)
        for path in sources(*PACKAGES)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom)
        and node.module == "time"
        and not name_of(path).startswith(CLOCK_READER_FOLDERS)
    ]
    assert not wrong


def test_tests_do_not_sleep() -> None:
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in sources("tests")
        if "workloads" not in path.parts
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep"
    ]
    assert not wrong


def tracked_texts() -> Iterator[tuple[str, str]]:
    listing = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    for name in filter(None, listing.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and path.suffix not in {".png", ".gz", ".bin"}:
            yield name, path.read_text(encoding="utf-8", errors="replace")


def test_nothing_refers_to_a_place_outside_the_repository() -> None:
    # Put together here, so that this file does not hold them.
    forbidden = ("../" + "shared", "/" + "work/", "pypi" + ".org", "python" + "hosted", "download." + "pytorch")
    wrong = [f"{name}: {word}" for name, text in tracked_texts() for word in forbidden if word in text]
    assert not wrong


def test_every_script_is_executable_and_stops_at_the_first_error() -> None:
    scripts = [path for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix]
    assert {path.name for path in scripts} >= {"install", "quickstart", "test", "check", "bench"}
    for path in [*scripts, ROOT / ".ci" / "run"]:
        assert os.access(path, os.X_OK), path
        assert "\nset -eu\n" in path.read_text(), path


def test_license_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "Version 2.0, January 2004" in text
