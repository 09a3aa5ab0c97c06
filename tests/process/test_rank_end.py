"""How a rank ends: exit codes and texts are the interpreter's own, and the agent hears of it before the teardown."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest

from ftlaunch.heartbeat.watching import lastwords
from ftlaunch.heartbeat.wire import Kind
from support import ranks
from support.jobs import Launcher
from support.scripts import write


def last_words(agent: ranks.Agent) -> lastwords.LastWords | None:
    found = [lastwords.from_payload(each.payload) for each in agent.receive() if each.kind is Kind.LAST_WORDS]
    assert len(found) <= 1
    return found[0] if found else None


ENDS = {
    "falls off its end": "print('x')",
    "exit 0": "import sys; sys.exit(0)",
    "exit None": "import sys; sys.exit()",
    "exit 3": "import sys; sys.exit(3)",
    "exit 300": "import sys; sys.exit(300)",
    "exit -1": "import sys; sys.exit(-1)",
    "exit huge": "import sys; sys.exit(1 << 80)",
    "exit with a text": "import sys; print('out'); sys.exit('the text')",
    "exit with an object": "import sys; sys.exit({'a': 1})",
    "exit by raise": "raise SystemExit(7) from ValueError('v')",
    "raises": "def f():\n    raise RuntimeError('first\\nsecond')\nf()",
    "raises from": "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e",
    "raises while handling": "try:\n    1/0\nexcept ZeroDivisionError:\n    {}['k']",
    "recursion": "def f(): f()\nf()",
    "import error": "import no_such_module_at_all",
    "syntax error": "x = 1\ndef f(:\n    pass\n",
    "indentation error": "if True:\n  x = 1\n    y = 2\n",
    "null byte": "x = 1\n'\\0'\n",
    "keyboard interrupt": "raise KeyboardInterrupt",
    "SIGINT": "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(9)",
    "SIGTERM": "import os, signal; os.kill(os.getpid(), signal.SIGTERM); import time; time.sleep(9)",
    "os._exit": "import os; os._exit(5)",
    "exception without text": "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
    "own hook": "import sys\nsys.excepthook = lambda *a: print('mine', a[0].__name__, a[2].tb_frame.f_lineno)\n1/0",
    "own hook raises": "import sys\ndef hook(*a):\n    raise ValueError('in hook')\nsys.excepthook = hook\n1/0",
    "own hook exits": "import sys\nsys.excepthook = lambda *a: sys.exit(9)\n1/0",
    "no hook": "import sys\ndel sys.excepthook\n1/0",
    "no stderr": "import sys\nsys.stderr = None\n1/0",
    "closed stderr": "import sys\nsys.stderr.close()\n1/0",
    "exception in atexit": "import atexit\natexit.register(lambda: 1/0)",
    "hook seen in atexit": (
        "import atexit, sys\natexit.register(lambda: print(sys.excepthook is sys.__excepthook__))\n1/0"
    ),
    "thread": "import threading\nt = threading.Thread(target=lambda: 1/0)\nt.start(); t.join()",
}


def comparable(text: str) -> str:
    """Without addresses, and without the depth of the stack: a few frames of it are ours."""
    text = re.sub("0x[0-9a-f]+|0000[0-9a-f]{12}", "0x", text)
    text = re.sub(r"refcount : \d+", "refcount", text)
    return re.sub(r"repeated \d+ more times", "repeated", text)


@pytest.mark.parametrize("name", ENDS)
def test_code_and_texts_are_those_of_a_direct_start(agent: ranks.Agent, tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text(ENDS[name] + "\n")
    done = agent.run("script", "train.py", cwd=tmp_path)
    expected = ranks.run_plain(["train.py"], cwd=tmp_path)
    assert (done.code, done.out) == (expected.code, expected.out)
    assert comparable(done.err) == comparable(expected.err)


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("no_such_script.py", 2),
        ("empty_folder", 1),
        ("no_such_module", 1),
        ("broken_package", 1),
        ("interrupted", None),
    ],
)
def test_what_cannot_be_run_is_reported_as_by_the_interpreter(
    agent: ranks.Agent, tmp_path: Path, target: str, code: int | None
) -> None:
    (tmp_path / "empty_folder").mkdir()
    (tmp_path / "broken_package").mkdir()
    (tmp_path / "broken_package" / "__init__.py").write_text("import no_such_thing")
    (tmp_path / "interrupted.py").write_text("def f():\n    raise KeyboardInterrupt\nf()")
    module = target in ("no_such_module", "broken_package", "interrupted")
    done = agent.run("module" if module else "script", target, cwd=tmp_path)
    assert done == ranks.run_plain([*(["-m"] if module else []), target], cwd=tmp_path)
    assert code is None or done.code == code


@pytest.mark.parametrize("kind", ["script", "module"])
def test_last_words_name_the_exception_and_the_place_in_the_user_code(
    agent: ranks.Agent, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """
            import json
            from ftlaunch import heartbeat
            class Broken(Exception): pass
            heartbeat.beat(41)
            def load():
                return json.loads("{")
            try:
                load()
            except ValueError as error:
                raise Broken("cannot load") from error
            """
        )
    )
    done = agent.run(kind, "train.py" if kind == "script" else "train", cwd=tmp_path)
    words = last_words(agent)
    assert words is not None
    assert (words.type, words.message, words.exit_code) == ("Broken", "cannot load", 1)
    assert words.place == f"{tmp_path}/train.py:11"
    assert (words.step, words.beaten, words.errno) == (41, True, None)
    assert words.traceback == done.err


def test_place_is_the_users_line_when_a_library_raises(agent: ranks.Agent, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import json\n\njson.loads('{')\n")
    agent.run("script", "train.py", cwd=tmp_path)
    words = last_words(agent)
    assert words is not None
    assert (words.type, words.place) == ("json.decoder.JSONDecodeError", f"{tmp_path}/train.py:3")


def test_no_last_words_for_a_good_end(agent: ranks.Agent, tmp_path: Path) -> None:
    for text in ("pass", "raise SystemExit", "import sys; sys.exit(False)"):
        (tmp_path / "train.py").write_text(text)
        assert agent.run("script", "train.py", cwd=tmp_path).code == 0
        assert last_words(agent) is None


def test_exit_code_and_errno_are_in_the_last_words(agent: ranks.Agent, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; sys.exit(300)")
    agent.run("script", "train.py", cwd=tmp_path)
    words = last_words(agent)
    assert words is not None
    assert (words.type, words.exit_code, words.traceback) == ("SystemExit", 44, "")
    (tmp_path / "train.py").write_text(
        "import socket\na = socket.create_server(('127.0.0.1', 0))\n"
        "try:\n    socket.create_server(a.getsockname(), reuse_port=False)\n"
        "except OSError as e:\n    raise RuntimeError('wrapped') from e\n"
    )
    agent.run("script", "train.py", cwd=tmp_path)
    words = last_words(agent)
    assert words is not None
    assert words.errno == errno.EADDRINUSE


def test_last_words_come_before_the_teardown(agent: ranks.Agent, tmp_path: Path) -> None:
    """The agent hears of the failure while the process still lives: here for as long as we do not let it go."""
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "train.py").write_text(
        "import atexit, sys\natexit.register(lambda: open('gate').read())\nraise ValueError('early')\n"
    )
    child = agent.start("script", "train.py", cwd=tmp_path)
    agent.receive_until(lambda message: message.kind is Kind.LAST_WORDS)
    assert child.poll() is None
    (tmp_path / "gate").write_text("")
    done = ranks.finish(child)
    assert (done.code, done.err.splitlines()[-1]) == (1, "ValueError: early")


def test_huge_traceback_is_cut_in_the_middle(agent: ranks.Agent, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('é' * 200000 + 'the end')")
    # Deaf: its output is read instead, which does not fit into a pipe.
    done = agent.run("script", "train.py", cwd=tmp_path, deaf=True)
    assert len(done.err) > 200000
    words = last_words(agent)
    assert words is not None
    assert len(words.traceback.encode()) <= 33 << 10
    assert words.traceback.startswith("Traceback (most recent call last):\n")
    assert words.traceback.endswith("the end\n")
    assert "[...]" in words.traceback


def test_stopped_agent_costs_the_dying_rank_a_tenth_of_a_second_at_most(agent: ranks.Agent, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from ftlaunch import heartbeat\nimport atexit, time\n"
        "for step in range(1000): heartbeat.beat(step)\n"
        "start = time.monotonic()\n"
        "atexit.register(lambda: print(time.monotonic() - start))\n1/0\n"
    )
    done = agent.run("script", "train.py", cwd=tmp_path, deaf=True)
    assert (done.code, done.err.splitlines()[-1]) == (1, "ZeroDivisionError: division by zero")
    assert 0.1 <= float(done.out) < 5


BINARIES = [
    (["sh", "-c", "exit 7"], 7, ""),
    (["sh", "-c", "kill -9 $$"], -signal.SIGKILL, ""),
    (["no-such-program-here"], 127, "ftlaunch: cannot execute 'no-such-program-here': No such file or directory\n"),
    (["./text"], 126, "ftlaunch: cannot execute './text': Permission denied\n"),
    (["./noshebang"], 126, "ftlaunch: cannot execute './noshebang': Exec format error\n"),
    (["."], 126, "ftlaunch: cannot execute '.': Permission denied\n"),
]


@pytest.mark.parametrize(("command", "code", "error"), BINARIES)
def test_binary_is_executed_in_place(
    agent: ranks.Agent, tmp_path: Path, command: list[str], code: int, error: str
) -> None:
    (tmp_path / "text").write_text("x")
    (tmp_path / "noshebang").write_text("x")
    (tmp_path / "noshebang").chmod(0o755)
    done = agent.run("binary", *command, cwd=tmp_path)
    assert (done.code, done.err) == (code, error)


def test_binary_finds_signals_as_a_shell_would_leave_them(agent: ranks.Agent, tmp_path: Path) -> None:
    def signals(status: str) -> list[str]:
        return [line for line in status.splitlines() if re.match("Sig[BIC]", line)]

    done = agent.run("binary", "sh", "-c", "exec cat /proc/self/status")
    # What this process ignores itself, SIGHUP below nohup, a shell would pass on.
    plain = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True)
    assert len(signals(done.out)) == 3 and signals(done.out) == signals(plain.stdout)


def test_bad_use_is_one_line(agent: ranks.Agent) -> None:
    for arguments in ([], ["script"], ["nonsense", "x"]):
        done = agent.run(*arguments)
        assert (done.code, len(done.err.splitlines())) == (2, 1)


FAILS = """
class Touchy:
    @property
    def __class__(self): say("touched"); return Touchy
touchy = Touchy()
file = open(sys.argv[1], "w")
file.write("not flushed yet")
raise ValueError("over")
"""


def test_files_are_flushed_and_no_other_object_is_asked_what_it_is(ftlaunch: Launcher, tmp_path: Path) -> None:
    """Objects of torch warn when they are."""
    job = ftlaunch(write(tmp_path, FAILS), tmp_path / "file")
    assert job.wait(30) == 1
    assert (tmp_path / "file").read_text() == "not flushed yet"
    assert "touched" not in job.out
