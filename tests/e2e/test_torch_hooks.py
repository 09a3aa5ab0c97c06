"""An unmodified torch script is heard: steps, checkpoints and process groups, cold and from a standby."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.heartbeat.watching import lastwords
from ftlaunch.heartbeat.wire import Kind, Message
from support import ranks

pytest.importorskip("torch")

TRAIN = """
import inspect, io, threading, json, os, sys, warnings
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters())
get_state_dict(model, optimizer)  # makes an empty step to have a state to load into, which is none of training
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(4)).sum().backward()
    optimizer.step()
state = {"model": model.state_dict()}
torch.save(state, "model.pt")
with open("other.pt", "wb") as stream:
    torch.save(state, stream)
torch.save(state, io.BytesIO())
thread = threading.Thread(target=lambda: torch.save(state, open("part.pt", "wb")))
thread.start()
thread.join()
torch.load("model.pt")
dcp.save(state, checkpoint_id="dcp-1")
dcp.async_save(state, checkpoint_id="dcp-2").result()
dcp.load(state, checkpoint_id="dcp-1")
try:
    torch.load("missing.pt")
except FileNotFoundError:
    pass
dist.destroy_process_group()
print(json.dumps({
    "save": str(inspect.signature(torch.save)), "module": torch.save.__module__, "name": torch.save.__qualname__,
    "same": torch.save is torch.serialization.save, "initial_seed": torch.initial_seed() == torch.initial_seed(),
    "threads": torch.get_num_threads(), "modules": len([n for n in sys.modules if n.startswith("torch.")]),
    "cuda": torch.cuda.is_initialized(), "default": str(torch.get_default_dtype()), "filters": len(warnings.filters),
}))
raise ValueError("at the end")
"""


def sections(messages: list[Message]) -> list[str]:
    return ["/".join(each.payload["sections"]) for each in messages if each.kind is Kind.SECTION]


def check(messages: list[Message], done: ranks.Finished, folder: Path) -> dict[str, Any]:
    assert done.code == 1, done.err
    assert done.err.endswith("ValueError: at the end\n")
    ticks = [each.step for each in messages if each.kind is Kind.TICK]
    assert ticks[:3] == [1, 2, 3]
    assert sections(messages)[:4] == ["init", "", "checkpoint", ""]
    first_tick = next(number for number, each in enumerate(messages) if each.kind is Kind.TICK)
    assert len([each for each in messages[:first_tick] if each.kind is Kind.SECTION]) == 4
    assert set(sections(messages)[4:]) <= {"checkpoint", "checkpoint/checkpoint", ""}
    saved = [each.payload for each in messages if each.kind is Kind.CHECKPOINT]
    assert [(each["source"], each["path"]) for each in saved] == [
        ("torch.save", "model.pt"),
        ("torch.save", "other.pt"),
        ("dcp", "dcp-1"),
        ("dcp", "dcp-2"),
    ]
    phases = [each.payload.get("phase") for each in messages if each.kind is Kind.HELLO]
    assert phases == ["start", "script", "import", "optimizer"]
    (words,) = [lastwords.from_payload(each.payload) for each in messages if each.kind is Kind.LAST_WORDS]
    assert (words.ticks, words.beaten, words.step) == (len(ticks), True, None)
    return dict(json.loads(done.out))


@pytest.mark.slow
def test_unmodified_script_is_heard_cold_and_from_a_standby(agent: ranks.Agent, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = agent.run("script", "train.py", cwd=tmp_path)
    messages = agent.receive()
    cold = check(messages, done, tmp_path)
    assert cold["save"].startswith("(obj: object, f: ")
    assert (cold["module"], cold["name"], cold["same"]) == ("torch.serialization", "save", True)
    (learned,) = [each.payload for each in messages if each.kind is Kind.MODULES]
    assert {"torch", "torch.optim.adam", "torch.distributed.checkpoint"} <= set(learned["names"])
    with ranks.standby(agent) as standby:
        report = standby.preload(*learned["names"], environment=learned["environment"])
        assert (report["failed"], report.get("unfit")) == ({}, None)
        assert agent.receive() == []
        standby.go("script", "train.py", cwd=tmp_path)
        agent.listen(standby.process)
        done = ranks.finish(standby.process)
    warm = check(agent.receive(), done, tmp_path)
    assert warm == cold


@pytest.mark.slow
def test_taken_port_is_recognised_in_the_last_words(agent: ranks.Agent, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, torch.distributed as dist\n"
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main():\n"
        "    first = dist.TCPStore('127.0.0.1', 0, 1, True)\n"
        "    dist.TCPStore('127.0.0.1', first.port, 1, True)\n"
        "main()\n"
    )
    error_file = tmp_path / "error.json"
    done = agent.run("script", "train.py", cwd=tmp_path, TORCHELASTIC_ERROR_FILE=str(error_file))
    (words,) = [lastwords.from_payload(each.payload) for each in agent.receive() if each.kind is Kind.LAST_WORDS]
    assert words.type == "torch.distributed.DistNetworkError", done.err
    assert "EADDRINUSE" in words.message
    assert words.place == f"{tmp_path}/train.py:6"
    assert "DistNetworkError" in json.loads(error_file.read_text())["message"]["message"]
