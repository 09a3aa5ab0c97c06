"""Reports of ports and names that were not what they seemed, on one node."""

from __future__ import annotations

import ast
import os
import shutil
import socket
import sys
import threading
from pathlib import Path

import pytest

from ftlaunch.rendezvous import ports
from support.jobs import Launcher
from support.scripts import TWO, write

ROOT = Path(__file__).resolve().parents[2]


def test_R5_a_reserved_port_goes_to_nobody_else_and_still_takes_its_server() -> None:
    """Somebody binds every port that the kernel hands out while a hundred are reserved, one after the other."""
    taken: list[socket.socket] = []
    stop = threading.Event()

    def grab() -> None:
        while not stop.is_set() and len(taken) < 1000:
            grabbed = socket.socket()
            grabbed.bind(("127.0.0.1", 0))
            taken.append(grabbed)

    thief = threading.Thread(target=grab)
    thief.start()
    try:
        for _ in range(100):
            reservation = ports.reserve()
            with socket.socket() as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind(("", reservation.port))
                server.listen()
            reservation.close()
    finally:
        stop.set()
        thief.join()
        for grabbed in taken:
            grabbed.close()


def test_R5_a_port_found_taken_at_the_start_costs_no_restart(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = """
say("port", os.environ["MASTER_PORT"])
if GEN < 3: raise OSError(98, "Address already in use")
"""
    job = ftlaunch("--max-restarts", "0", write(tmp_path, body))
    assert job.wait(30) == 0
    ports_seen = [line.split()[1] for line in job.out.splitlines()]
    assert len(ports_seen) == 4 and len(set(ports_seen)) == 4


def test_R6_a_port_in_use_is_one_line_and_2_at_once(ftlaunch: Launcher, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        job = ftlaunch(*TWO, "--master-port", str(port), write(tmp_path, "say('ran')"))
        assert job.wait(20) == 2
    assert job.out == "" and "Traceback" not in job.err
    (line,) = [line for line in job.err.splitlines() if str(port) in line]
    assert f"pid {os.getpid()}" in line


def test_R7_a_host_name_that_nobody_knows_does_not_matter(ftlaunch: Launcher, tmp_path: Path) -> None:
    if os.getuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare for a host name of its own")
    body = """
import socket
if RANK == 0: socket.create_server(("", int(os.environ["MASTER_PORT"]))).accept()
while RANK:
    try: socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))); break
    except ConnectionRefusedError: time.sleep(0.01)
say(socket.gethostname())
"""
    outer = tmp_path / "outer.sh"
    command = f"{sys.executable} -m ftlaunch.launcher --nproc-per-node 2 {write(tmp_path, body)}"
    outer.write_text(f"#!/bin/sh\nexec unshare --uts sh -c 'hostname does-not-resolve.invalid && exec {command}'\n")
    outer.chmod(0o755)
    job = ftlaunch("--no-python", outer)
    assert job.wait(30) == 0, job.err
    assert job.out.count("does-not-resolve.invalid") == 2


def test_R7_no_address_is_ever_turned_into_a_name() -> None:
    asked = {"getfqdn", "gethostbyaddr", "getnameinfo", "gethostbyname"}
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in ("launcher", "heartbeat", "rendezvous")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in asked
    ]
    assert wrong == []
