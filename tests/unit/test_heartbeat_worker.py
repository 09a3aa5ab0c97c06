"""The worker side's small parts, without processes."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import math
import socket
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.heartbeat import client, compact, hooks, modules, stackdump, uncaught, wire
from ftlaunch.heartbeat.standbys import frames, idle, warm
from ftlaunch.heartbeat.watching import lastwords

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


# -- compact ------------------------------------------------------------------------------------------------------


@given(VALUES)
def test_compact_json_reads_back_as_what_was_written(value: object) -> None:
    try:
        text = compact.dumps(value)
    except ValueError:
        return
    assert json.loads(text) == value


def test_compact_json_of_odd_values() -> None:
    assert json.loads(compact.dumps([math.nan, math.inf, -math.inf])) == ["nan", "inf", "-inf"]
    assert json.loads(compact.dumps({1: ("a", "\udcff"), "b": Path("/x")})) == {"1": ["a", "\udcff"], "b": "/x"}
    assert json.loads(compact.dumps(True)) is True
    deep: list[object] = []
    deep.append(deep)
    with pytest.raises(ValueError, match="nested"):
        compact.dumps(deep)


# -- the client and the wire --------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[client.Client, socket.socket]]:
    """A connected client and the socket that hears it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("")
        receiver.setblocking(False)
        name = receiver.getsockname()
        assert isinstance(name, bytes)
        made = client.Client()
        environment = {"FTLAUNCH_SOCKET": f"@{name[1:].decode()}", "FTLAUNCH_GENERATION": "4294967295"}
        assert made.attach({**environment, "LOCAL_RANK": "7"})
        yield made, receiver
        made.disconnect()


def test_client_writes_what_the_wire_format_says(
    pair: tuple[client.Client, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FTLAUNCH_BEATER", "")
    made, receiver = pair
    made.hello("start")
    made.open_section("eval")
    made.beat(1 << 62, {"loss": 1.5})
    made.tick()
    made.last_words({"type": "E"})
    found = [wire.decode(receiver.recv(wire.MAX_BYTES)) for _ in range(4)]
    assert [(each.generation, each.local_rank) for each in found] == [(4294967295, 7)] * 4
    assert [each.kind for each in found] == [
        wire.Kind.HELLO,
        wire.Kind.SECTION,
        wire.Kind.BEAT,
        wire.Kind.LAST_WORDS,
    ]
    assert (found[2].step, found[2].section_serial, found[2].payload) == (1 << 62, 1, {"info": {"loss": 1.5}})
    assert [each.sequence for each in found] == [1, 2, 3, 4]


def test_client_numbers_its_kinds_as_the_wire_format_does() -> None:
    assert {name: getattr(client, name) for name in wire.Kind.__members__} == dict(wire.Kind.__members__)
    assert client.MAX_BYTES == wire.MAX_BYTES


def test_message_too_long_is_not_sent(pair: tuple[client.Client, socket.socket]) -> None:
    made, receiver = pair
    assert not made.tell(client.REQUEST, {"reason": "x" * wire.MAX_BYTES})
    assert made.tell(client.REQUEST, {"reason": "x"})
    assert wire.decode(receiver.recv(wire.MAX_BYTES)).payload == {"reason": "x"}


# -- frames -------------------------------------------------------------------------------------------------------


@given(st.lists(st.dictionaries(st.text(), VALUES, max_size=3), max_size=4), st.integers(1, 50))
def test_frames_come_out_whole_however_they_are_cut(messages: list[dict[str, object]], size: int) -> None:
    data = b"".join(frames.encode(message) for message in messages)
    reader = frames.FrameReader()
    found = [message for start in range(0, len(data), size) for message in reader.feed(data[start : start + size])]
    assert found == messages


@pytest.mark.parametrize("data", [b"\xff\xff\xff\x7f", b"\x01\x00\x00\x00x", b"\x02\x00\x00\x00[]"])
def test_frames_that_are_none(data: bytes) -> None:
    with pytest.raises(frames.FrameError):
        frames.FrameReader().feed(data)


def test_frame_too_long_is_refused_by_the_sender() -> None:
    with pytest.raises(frames.FrameError, match="at most"):
        frames.encode({"x": "y" * frames.MAX_BYTES})


# -- last words ---------------------------------------------------------------------------------------------------


def test_last_words_take_only_what_has_the_right_type() -> None:
    words = lastwords.from_payload({"type": 1, "message": "m", "step": "2", "beaten": 1, "errno": 98, "more": 1})
    assert words == lastwords.LastWords(message="m", errno=98)
    assert lastwords.from_payload({}) == lastwords.LastWords()


@given(st.dictionaries(st.sampled_from([*lastwords.LastWords.__dataclass_fields__, "x"]), VALUES))
def test_last_words_survive_any_payload(payload: dict[str, object]) -> None:
    words = lastwords.from_payload(payload)
    assert isinstance(words.message, str) and isinstance(words.beaten, bool)


def test_a_script_that_exits_has_no_exception() -> None:
    assert lastwords.LastWords("SystemExit").exception == ""
    assert lastwords.LastWords("my.Error").exception == "my.Error"


def failing(depth: int = 0) -> None:
    if depth:
        failing(depth - 1)
    raise ValueError("deep")


def caught(depth: int = 0) -> BaseException:
    try:
        failing(depth)
    except ValueError as error:
        return error
    raise AssertionError


def test_description_of_an_exception() -> None:
    words = lastwords.from_payload(uncaught.describe(caught(), 1))
    assert (words.type, words.message, words.exit_code) == ("ValueError", "deep", 1)
    assert words.place.startswith(f"{__file__}:")
    assert words.traceback.endswith("ValueError: deep\n")


def test_traceback_is_bounded_and_goes_nowhere_else(capsys: pytest.CaptureFixture[str]) -> None:
    error = RuntimeError("é" * 100_000)
    text = uncaught.render(error)
    assert len(text.encode()) <= 33 << 10
    assert "[...]" in text
    assert capsys.readouterr().err == ""


def test_our_frames_are_taken_out_of_the_middle_too() -> None:
    harmless = hooks.PostImport(["x"], lambda name, module: None)

    class Inner:
        @staticmethod
        def find_spec(*_: object) -> None:
            failing()

    sys.meta_path[:0] = [harmless, Inner]
    try:
        with pytest.raises(ValueError, match="deep") as info:
            harmless.find_spec("x")
    finally:
        sys.meta_path.remove(harmless)
        sys.meta_path.remove(Inner)
    outer = RuntimeError("outer")
    outer.__context__ = info.value
    assert "find_behind" in [entry.name for entry in info.traceback]
    uncaught.strip(outer)
    names = []
    traceback = info.value.__traceback__
    while traceback is not None:
        names.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert names[-2:] == ["find_spec", "failing"]
    assert "find_behind" not in names


# -- modules ------------------------------------------------------------------------------------------------------


def test_environment_changes() -> None:
    before = {"A": "1", "B": "2", "C": "3", "FTLAUNCH_X": "1"}
    after = {"A": "1", "B": "9", "D": "4", "FTLAUNCH_BEATER": "7"}
    assert modules.changes(before, after) == {"B": "9", "C": None, "D": "4"}


def test_only_installed_modules_are_listed_and_lazy_ones_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> object:
            raise AssertionError("touched")

    spec = importlib.machinery.ModuleSpec("alias_of", None, origin="/usr/lib/python3/dist-packages/x.py")
    alias = types.ModuleType("alias")
    alias.__spec__ = spec
    monkeypatch.setitem(sys.modules, "lazy_one", Lazy("lazy_one"))
    monkeypatch.setitem(sys.modules, "alias", alias)
    monkeypatch.setitem(sys.modules, "nothing", None)
    names = modules.loaded()
    assert {"json", "pytest"} <= set(names)
    assert not {"lazy_one", "alias", "nothing", "sys", __name__, "__main__"} & set(names)
    assert not [name for name in names if name.startswith("ftlaunch")]


# -- hooks --------------------------------------------------------------------------------------------------------


@pytest.fixture
def module_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "ft_watched.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ft_watched", raising=False)
    return "ft_watched"


def test_hook_fires_once_after_the_import_and_leaves_no_trace(module_file: str) -> None:
    fired: list[tuple[str, int]] = []
    finder = hooks.PostImport([module_file], lambda name, module: fired.append((name, module.x)))
    sys.meta_path.insert(0, finder)
    try:
        spec = importlib.util.find_spec(module_file)
        assert spec is not None
        assert (fired, type(spec.loader)) == ([], importlib.machinery.SourceFileLoader)
        module = importlib.import_module(module_file)
        assert fired == [(module_file, 1)]
        assert finder not in sys.meta_path
        assert set(vars(module.__loader__)) == {"name", "path"}
        assert importlib.reload(module) is module
        assert len(fired) == 1
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        sys.modules.pop(module_file, None)


def test_hook_that_fails_does_not_reach_the_import(module_file: str) -> None:
    def fire(name: str, module: types.ModuleType) -> None:
        raise RuntimeError(name)

    finder = hooks.PostImport([module_file], fire)
    sys.meta_path.insert(0, finder)
    try:
        assert importlib.import_module(module_file).x == 1
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        sys.modules.pop(module_file, None)


def test_failed_import_keeps_the_hook(module_file: str, tmp_path: Path) -> None:
    fired: list[str] = []
    finder = hooks.PostImport([module_file], lambda name, module: fired.append(name))
    source = tmp_path / f"{module_file}.py"
    source.write_text("1/0")
    sys.meta_path.insert(0, finder)
    try:
        with pytest.raises(ZeroDivisionError):
            importlib.import_module(module_file)
        source.write_text("x = 2 + 0")
        importlib.invalidate_caches()
        assert importlib.import_module(module_file).x == 2
        assert fired == [module_file]
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        sys.modules.pop(module_file, None)


# -- standby ------------------------------------------------------------------------------------------------------


def test_denied_modules_and_everything_below_them() -> None:
    denied = idle.Denied(["my.pkg", 7])
    for name in ("mpi4py", "mpi4py.MPI", "pycuda.autoinit", "my.pkg", "my.pkg.sub"):
        assert denied.covers(name), name
    for name in ("mpi4py_fft", "pycuda", "my", "my.pkg2", "torch"):
        assert not denied.covers(name), name


def test_setting_goes_cold_and_warm_again() -> None:
    values = ["a", "b"]
    setting = warm._list(values)
    values[:] = ["new", "a", "b", "last"]
    setting.chill()
    assert values == ["a", "b"]
    values.insert(0, "script")
    setting.thaw()
    assert values == ["new", "script", "a", "b", "last"]


def test_dump_signal_is_a_real_time_signal_away_from_both_ends() -> None:
    import signal

    assert signal.SIGRTMIN + 3 < stackdump.DUMP_SIGNAL < signal.SIGRTMAX
