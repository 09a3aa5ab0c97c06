"""What a script says through ``ftlaunch.heartbeat``, and that it costs the script nothing whatever the agent does."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from ftlaunch.heartbeat import stackdump
from ftlaunch.heartbeat.wire import Kind, Message
from ftlaunch.launcher.host import proctree
from support import procfs, ranks
from support.waiting import wait_until

IMPORT = "from ftlaunch import heartbeat\nimport os, sys, time, threading\n"


def run(agent: ranks.Agent, folder: Path, body: str, *, deaf: bool = False, **more: str) -> ranks.Finished:
    (folder / "train.py").write_text(IMPORT + body)
    done = agent.run("script", "train.py", cwd=folder, deaf=deaf, **more)
    assert done.code == 0, done.err
    return done


def of_kind(messages: list[Message], *kinds: Kind) -> list[Message]:
    return [message for message in messages if message.kind in kinds]


def test_start_is_told_in_phases(agent: ranks.Agent, tmp_path: Path) -> None:
    child = agent.start("script", "train.py", cwd=tmp_path)
    (tmp_path / "train.py").write_text("pass")
    ranks.finish(child)
    found = agent.receive_with_pid()
    assert [(each.kind, each.payload, pid) for each, pid in found] == [
        (Kind.HELLO, {"pid": child.pid, "phase": "start"}, child.pid),
        (Kind.HELLO, {"pid": child.pid, "phase": "script"}, child.pid),
    ]
    assert {(each.generation, each.local_rank) for each, _ in found} == {(3, 0)}
    assert [each.sequence for each, _ in found] == [1, 2]


def test_beats_carry_step_and_info(agent: ranks.Agent, tmp_path: Path) -> None:
    run(
        agent,
        tmp_path,
        "class Tensor:\n    def __float__(self): return 0.5\n"
        "class Bad:\n    def __str__(self): raise ValueError\n"
        "heartbeat.beat()\nheartbeat.beat(5)\nheartbeat.beat(6, loss=Tensor(), name='a' * 1000, n=2, bad=Bad())\n"
        "heartbeat.beat('7')\nheartbeat.beat(object())\nheartbeat.beat(-5)\nheartbeat.beat(1 << 70)\n"
        "heartbeat.beat(8, x=float('nan'), y=None, z=True)\n",
    )
    beats = of_kind(agent.receive(), Kind.BEAT)
    assert [beat.step for beat in beats] == [None, 5, 6, 7, None, None, None, 8]
    assert beats[2].payload == {"info": {"loss": 0.5, "name": "a" * 256, "n": 2, "bad": None}}
    assert beats[7].payload == {"info": {"x": "nan", "y": None, "z": True}}
    assert [beat.sent_ns for beat in beats] == sorted(beat.sent_ns for beat in beats)


def test_sections_nest_and_every_message_repeats_the_serial(agent: ranks.Agent, tmp_path: Path) -> None:
    run(
        agent,
        tmp_path,
        "@heartbeat.section('eval')\ndef evaluate(n):\n    'doc'\n"
        "    heartbeat.beat()\n    return n and evaluate(n - 1)\n"
        "@heartbeat.section('serve')\nasync def serve():\n    return 3\n"
        "with heartbeat.section('outer'):\n    evaluate(1)\n"
        "import asyncio\nassert asyncio.run(serve()) == 3\n"
        "assert evaluate.__doc__ == 'doc'\n"
        "try:\n    with heartbeat.section('fails'):\n        1/0\nexcept ZeroDivisionError: pass\n",
    )
    found = of_kind(agent.receive(), Kind.SECTION, Kind.BEAT)
    stacks = [tuple(each.payload["sections"]) for each in found if each.kind is Kind.SECTION]
    nested = [("outer",), ("outer", "eval"), ("outer", "eval", "eval"), ("outer", "eval"), ("outer",), ()]
    assert stacks == [*nested, ("serve",), (), ("fails",), ()]
    assert [each.section_serial for each in found] == [1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10]


def test_requests_and_checkpoints(agent: ranks.Agent, tmp_path: Path) -> None:
    done = run(
        agent,
        tmp_path,
        "t = threading.Thread(target=lambda: print(heartbeat.request_restart('loss is nan')))\nt.start(); t.join()\n"
        "heartbeat.beat(12)\nheartbeat.checkpoint_saved(path='/data/x')\nheartbeat.checkpoint_saved(13)\n"
        "print(heartbeat.request_stop('enough'))\n",
    )
    assert done.out.split() == ["True", "True"]
    found = of_kind(agent.receive(), Kind.REQUEST, Kind.CHECKPOINT)
    assert [each.payload for each in found] == [
        {"what": "restart", "reason": "loss is nan"},
        {"source": "script", "path": "/data/x", "step": 12},
        {"source": "script", "path": "", "step": 13},
        {"what": "stop", "reason": "enough"},
    ]


def test_questions_are_answered_from_the_environment(agent: ranks.Agent, tmp_path: Path) -> None:
    ask = "print(heartbeat.restart_count(), heartbeat.resume_path(), heartbeat.resume_step())\n"
    assert run(agent, tmp_path, ask).out == "0 None None\n"
    given = {
        "TORCHELASTIC_RESTART_COUNT": "2",
        "FTLAUNCH_RESUME_FROM": "/data/step-40",
        "FTLAUNCH_RESUME_STEP": "40",
    }
    assert run(agent, tmp_path, ask, **given).out == "2 /data/step-40 40\n"


def test_everything_is_a_silent_no_op_without_an_agent(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        IMPORT + "heartbeat.init()\nheartbeat.beat(1, a=2)\nwith heartbeat.section('eval'): pass\n"
        "heartbeat.checkpoint_saved(1)\n"
        "print(heartbeat.request_restart('x'), heartbeat.request_stop('x'), heartbeat.restart_count(),\n"
        "      heartbeat.resume_path(), sorted(name for name in os.environ if 'FTLAUNCH_B' in name))\n"
    )
    done = ranks.run_plain(["train.py"], cwd=tmp_path)
    assert done == ranks.Finished(0, "False False 0 None []\n", "")


@pytest.mark.parametrize("fault", ["stopped reader", "no socket", "foreign socket type", "garbage settings"])
def test_an_agent_that_does_not_listen_never_blocks_or_raises(agent: ranks.Agent, tmp_path: Path, fault: str) -> None:
    given = {
        "stopped reader": {},
        "no socket": {"FTLAUNCH_SOCKET": str(tmp_path / "nothing")},
        "foreign socket type": {"FTLAUNCH_SOCKET": str(tmp_path)},
        "garbage settings": {"FTLAUNCH_GENERATION": "x" * 100},
    }[fault]
    done = run(
        agent,
        tmp_path,
        "start = time.monotonic()\n"
        "for step in range(2000):\n    heartbeat.beat(step)\n"
        "    with heartbeat.section('eval'): heartbeat.beat(step, a=1)\n"
        "heartbeat.request_restart('x')\n"
        "print(time.monotonic() - start)\n",
        deaf=True,
        **given,
    )
    # 2000 sections with 200 ms of patience each would be 800 s.
    assert float(done.out) < 10


def test_lost_section_is_repeated_by_the_next_beat(agent: ranks.Agent, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "train.py").write_text(
        IMPORT + "for step in range(100): heartbeat.beat(step)\n"
        "with heartbeat.section('eval'):\n"
        "    print('full', flush=True)\n"
        "    open('gate').read()\n"
        "    heartbeat.beat(777)\n"
        "    heartbeat.beat(778)\n"
    )
    child = agent.start("script", "train.py", cwd=tmp_path)
    assert child.stdout.readline() == b"full\n"
    early = agent.receive()
    assert of_kind(early, Kind.SECTION) == []
    (tmp_path / "gate").write_text("")
    ranks.finish(child)
    repeated, later, closed = agent.receive()
    assert (repeated.step, repeated.section_serial, repeated.payload) == (777, 1, {"sections": ["eval"]})
    assert (later.step, later.payload) == (778, {})
    assert (closed.kind, closed.payload) == (Kind.SECTION, {"sections": []})


def test_forked_children_never_beat_for_their_parent(agent: ranks.Agent, tmp_path: Path) -> None:
    """Four children in each of 50 rounds, while the parent beats: only the parent is heard, and nothing hangs."""
    (tmp_path / "train.py").write_text(
        IMPORT + "def child():\n"
        "    heartbeat.init()\n    heartbeat.beat(666)\n"
        "    with heartbeat.section('child'): pass\n"
        "    heartbeat.request_restart('child')\n    heartbeat.checkpoint_saved(1)\n"
        "    os._exit(0 if not any('socket' in os.readlink(f'/proc/self/fd/{fd}')\n"
        "                          for fd in os.listdir('/proc/self/fd') if int(fd) > 900\n"
        "                          and os.path.exists(f'/proc/self/fd/{fd}')) else 1)\n"
        "for step in range(50):\n"
        "    heartbeat.beat(step)\n"
        "    pids = [os.fork() or child() for _ in range(4)]\n"
        "    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4\n"
        "print('done', flush=True)\nsys.stdin.read()\n"
    )
    child = agent.start("script", "train.py", cwd=tmp_path)
    found = agent.receive_until(lambda message: message.step == 49)
    done = ranks.finish(child)
    found += agent.receive()
    assert (done.code, done.out) == (0, "done\n"), done.err
    kinds = {Kind.BEAT, Kind.HELLO, Kind.MODULES}
    assert {message.kind for message in found} <= kinds
    assert 666 not in {message.step for message in found}


def test_thread_cannot_beat_for_a_stuck_main_thread(agent: ranks.Agent, tmp_path: Path) -> None:
    run(
        agent,
        tmp_path,
        "from ftlaunch.heartbeat.client import CLIENT\n"
        "def timer():\n"
        "    for step in range(20):\n        heartbeat.beat(step)\n"
        "        with heartbeat.section('never'): CLIENT.tick()\n"
        "heartbeat.beat(100)\n"
        "t = threading.Thread(target=timer); t.start(); t.join()\n",
    )
    assert [each.step for each in of_kind(agent.receive(), Kind.BEAT, Kind.TICK, Kind.SECTION)] == [100]


def test_init_makes_another_thread_the_training_thread(agent: ranks.Agent, tmp_path: Path) -> None:
    run(
        agent,
        tmp_path,
        "def loop():\n    heartbeat.init()\n    heartbeat.beat(1)\n"
        "t = threading.Thread(target=loop); t.start(); t.join()\nheartbeat.beat(2)\n",
    )
    assert [each.step for each in of_kind(agent.receive(), Kind.BEAT)] == [1]


def test_optimizer_in_another_thread_is_followed_until_anybody_else_has_beaten(
    agent: ranks.Agent, tmp_path: Path
) -> None:
    run(
        agent,
        tmp_path,
        "from ftlaunch.heartbeat.client import CLIENT\n"
        "t = threading.Thread(target=lambda: [CLIENT.tick() for _ in range(3)]); t.start(); t.join()\n"
        "CLIENT.tick()\n",
    )
    assert [each.step for each in of_kind(agent.receive(), Kind.TICK)] == [1, 2, 3]


def test_beats_without_a_number_tell_the_optimizers(agent: ranks.Agent, tmp_path: Path) -> None:
    run(
        agent,
        tmp_path,
        "from ftlaunch.heartbeat.client import CLIENT\n"
        "heartbeat.beat()\nCLIENT.tick()\nCLIENT.tick()\nheartbeat.beat(loss=0.5)\nheartbeat.beat(70)\nheartbeat.beat()\n",
    )
    found = of_kind(agent.receive(), Kind.TICK, Kind.BEAT)
    assert [(each.kind, each.step) for each in found] == [
        (Kind.BEAT, None),
        (Kind.TICK, 2),
        (Kind.BEAT, 70),
        (Kind.BEAT, None),
    ]


def test_explicit_beats_take_over_from_ticks(agent: ranks.Agent, tmp_path: Path) -> None:
    run(
        agent,
        tmp_path,
        "from ftlaunch.heartbeat.client import CLIENT\n"
        "CLIENT.tick()\nCLIENT.tick()\nheartbeat.beat(70)\nCLIENT.tick()\n",
    )
    found = of_kind(agent.receive(), Kind.TICK, Kind.BEAT)
    assert [(each.kind, each.step) for each in found] == [(Kind.TICK, 1), (Kind.TICK, 2), (Kind.BEAT, 70)]


def test_any_process_below_a_program_may_beat_but_not_the_children_of_one_that_does(
    agent: ranks.Agent, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        IMPORT + "import subprocess\n"
        "if sys.argv[1:]: heartbeat.beat(666)\n"
        "else:\n    heartbeat.beat(4)\n    subprocess.run([sys.executable, 'train.py', 'child'])\n"
    )
    done = agent.run("binary", "sh", "-c", f"{sys.executable} train.py; true", cwd=tmp_path)
    assert done.code == 0, done.err
    beats = [(each.step, pid) for each, pid in agent.receive_with_pid() if each.kind is Kind.BEAT]
    assert [step for step, _ in beats] == [4]
    assert beats[0][1] != agent.children[0].pid


def test_script_that_closes_all_descriptors_is_heard_again_and_writes_nowhere_else(
    agent: ranks.Agent, tmp_path: Path
) -> None:
    run(
        agent,
        tmp_path,
        "import socket\nheartbeat.beat(1)\nos.closerange(3, 4096)\n"
        "ours = [socket.socketpair() for _ in range(20)]\n"
        "for step in range(2, 6): heartbeat.beat(step)\n"
        "for pair in ours:\n    for each in pair:\n        each.setblocking(False)\n"
        "        try: print(each.recv(100))\n        except BlockingIOError: pass\n",
    )
    beats = of_kind(agent.receive(), Kind.BEAT)
    assert [each.step for each in beats] == [1, 3, 4, 5]


def test_first_beat_of_local_rank_0_tells_installed_modules_and_environment_changes(
    agent: ranks.Agent, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("")
    body = (
        "os.environ['OMP_NUM_THREADS'] = '3'\ndel os.environ['UNWANTED']\n"
        "import mine, json.decoder, colorsys, click\nheartbeat.beat(1)\nheartbeat.beat(2)\n"
    )
    run(agent, tmp_path, body, UNWANTED="1")
    (told,) = of_kind(agent.receive(), Kind.MODULES)
    assert told.payload["environment"] == {"OMP_NUM_THREADS": "3", "UNWANTED": None}
    names = told.payload["names"]
    assert names.index("json.decoder") < names.index("json") < names.index("colorsys") < names.index("click")
    assert not {"mine", "__main__", "sys", "ftlaunch", "ftlaunch.heartbeat"} & set(names)
    run(agent, tmp_path, body, UNWANTED="1", LOCAL_RANK="1")
    assert of_kind(agent.receive(), Kind.MODULES) == []


# -- tied to the agent --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["script", "binary"])
def test_worker_dies_with_the_write_end_of_the_death_pipe(agent: ranks.Agent, tmp_path: Path, kind: str) -> None:
    (tmp_path / "train.py").write_text("print('up', flush=True)\nwhile True: pass\n")
    command = ["train.py"] if kind == "script" else ["sh", "-c", "echo up; while :; do :; done"]
    first, second = (agent.start(kind, *command, cwd=tmp_path) for _ in range(2))
    for child in (first, second):
        assert child.stdout.readline() == b"up\n"
    os.close(agent.death_write)
    # Both, though they were given the same descriptor.
    assert [child.wait(10) for child in (first, second)] == [-signal.SIGKILL] * 2


def test_worker_whose_agent_is_gone_before_it_is_armed_does_not_start(agent: ranks.Agent, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    os.close(agent.death_write)
    done = agent.run("script", "train.py", cwd=tmp_path)
    assert (done.code, done.out) == (-signal.SIGKILL, "")


@pytest.mark.parametrize("fds", ["kept", "closed"])
def test_worker_dies_with_its_agent_also_when_it_closed_all_descriptors(tmp_path: Path, fds: str) -> None:
    """A real parent, killed: by the death pipe, or by the parent-death signal alone."""
    (tmp_path / "train.py").write_text(
        f"import os, sys\nif {fds == 'closed'}: os.closerange(3, 4096)\n"
        "open('pid', 'w').write(str(os.getpid()))\nos.rename('pid', 'up')\nwhile True: pass\n"
    )
    (tmp_path / "parent.py").write_text(
        "import os, subprocess, sys\nr, w = os.pipe()\n"
        "env = dict(os.environ, FTLAUNCH_DEATH_FD=str(r), FTLAUNCH_AGENT_PID=str(os.getpid()))\n"
        "subprocess.Popen([sys.executable, sys.argv[1], 'script', 'train.py'], env=env, pass_fds=[r],\n"
        "                 start_new_session=True).wait()\n"
    )
    with ranks.agent() as agent:
        parent = agent.start("script", "parent.py", ranks.BOOTSTRAP, cwd=tmp_path)
        wait_until((tmp_path / "up").exists)
        worker = int((tmp_path / "up").read_text())
        assert procfs.alive(worker)
        parent.kill()
        wait_until(lambda: not procfs.alive(worker), what="worker is dead")


def test_worker_in_another_parents_hands_lives_while_the_pipe_is_open(agent: ranks.Agent, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    (tmp_path / "wrapper.sh").write_text(f"{sys.executable} {ranks.BOOTSTRAP} script train.py\nexit 0\n")
    ties = {"FTLAUNCH_DEATH_FD": str(agent.death_read), "FTLAUNCH_AGENT_PID": "1"}
    agent.interpreter_args = ("-c", f"import os; os.execv('/bin/sh', ['sh', {str(tmp_path / 'wrapper.sh')!r}])")
    done = ranks.finish(agent.start(cwd=tmp_path, **ties))
    assert (done.code, done.out) == (0, "ran\n"), done.err


def test_stacks_of_a_spinning_worker_can_be_had(agent: ranks.Agent, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "def spinning():\n    print('up', flush=True)\n    while True: pass\nspinning()\n"
    )
    with open(tmp_path / "dump", "ab") as dump:
        fd = dump.fileno()
        child = agent.start("script", "train.py", cwd=tmp_path, pass_fds=(fd,), FTLAUNCH_DUMP_FD=str(fd))
        assert child.stdout.readline() == b"up\n"
        assert proctree.has_handler(child.pid, stackdump.DUMP_SIGNAL)
        child.send_signal(stackdump.DUMP_SIGNAL)
        wait_until(lambda: stackdump.is_complete((tmp_path / "dump").read_text()))
    text = stackdump.without_our_frames((tmp_path / "dump").read_text())
    # Perhaps still on its way from the print to the loop.
    assert re.fullmatch(
        r"Current thread .*\n"
        r'  File "\S+/train\.py", line [23] in spinning\n'
        r'  File "\S+/train\.py", line 4 in <module>\n',
        text,
    )
    assert child.poll() is None
