"""Two agents, an etcd of three members, every node's own ways to them: and doing to them what the plan says."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ftlaunch.launcher import clock
from ftlaunch.launcher.drill import injector, machinery
from ftlaunch.launcher.drill.board import VARIABLE, open_board
from ftlaunch.launcher.drill.machinery import MARK, Agent, Child, Link
from ftlaunch.launcher.drill.plan import Fault, Kind
from ftlaunch.launcher.host import proctree
from soak_lib.plan import MEMBERS, NODES, RANKS, Deed, Strike
from support.etcd import EtcdCluster, Member

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "workloads" / "train_exact.py"
ENDLESS, EVERY, STEP_S = 10**9, 25, 0.02
"""Steps until told otherwise, steps between two checkpoints, pause in each step."""
NODE_TIMEOUT_S = 5.0
OPTIONS = (
    *("--node-timeout", f"{NODE_TIMEOUT_S:g}", "--hang-floor", "1s"),
    # What is learnt does not hold during the first steps of a generation, and a fault may hit one of them.
    *("--hang-timeout", "60s", "--init-timeout", "60s"),
    # Faults come without regard to progress: that must not end the job.
    *("--max-restarts", "100000", "--log-file-limit", "16M"),
)
_END_S = 5.0
_BY_RANK = {
    Deed.RANK_SPIN: Kind.SPIN,
    Deed.RANK_RAISE: Kind.EXCEPTION,
    Deed.RANK_OOM: Kind.OOM,
    Deed.DISK_FULL: Kind.DISK_FULL,
}


class Stage:
    """Everything that runs. :meth:`close` leaves nothing of it."""

    def __init__(self, out: Path, cluster: EtcdCluster) -> None:
        self.out = out
        self.job = f"soak-{secrets.token_hex(4)}"
        self.agents: list[Agent] = []
        self.cluster = cluster
        self._board = open_board(str(out / "board"))
        self._board.keep_ledger()
        for name in ("run", "tmp"):
            (out / name).mkdir(mode=0o700)
        self._links: list[list[Link]] = []
        self._groups: list[Path] = []
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._stopped: set[str] = set()
        self.struck_down: set[str] = set()
        """Marks of the lives of agents that we have ended."""

    # -- what runs ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the ways to etcd and the agents."""
        for _ in range(NODES):
            self._links.append([])
            for member in self.cluster.members:
                self._links[-1].append(Link(member.client_port))
        for node in range(NODES):
            self.start_agent(node)

    def start_agent(self, node: int) -> None:
        """A new life of a node's agent."""
        life = sum(agent.node == node for agent in self.agents)
        folder = self.out / f"node-{node}-life-{life + 1}"
        environment = {
            **os.environ,
            VARIABLE: str(self._board.folder),
            MARK: f"{self.job}.{node}.{life}",
            "XDG_RUNTIME_DIR": str(self.out / "run"),
            "TMPDIR": str(self.out / "tmp"),
            "EXACT_STEP_S": str(STEP_S),
            "OMP_NUM_THREADS": "1",
        }
        endpoints = ",".join(f"127.0.0.1:{link.port}" for link in self._links[node])
        argv = [sys.executable, "-m", "ftlaunch.launcher", "--run-dir", str(folder), *OPTIONS]
        argv += ["--nnodes", str(NODES), "--nproc-per-node", str(RANKS), "--allow-multiple-agents-per-node"]
        argv += ["--rdzv-backend", "etcd", "--rdzv-id", self.job, "--rdzv-endpoint", endpoints]
        argv += ["--local-addr", "127.0.0.1", "--checkpoint-dir", str(self.out / "checkpoints")]
        argv += [str(SCRIPT), str(self.out), str(ENDLESS), str(EVERY)]
        self.agents.append(Agent(argv, environment, folder, node))

    def current(self, node: int) -> Agent:
        """The latest life of a node's agent."""
        return [agent for agent in self.agents if agent.node == node][-1]

    @property
    def running(self) -> list[Agent]:
        """Agents that live."""
        return [agent for agent in self.agents if agent.alive]

    @property
    def whole(self) -> bool:
        """Nothing is held up, and nothing has yet to be started again."""
        return not self._due

    def left_over(self, agents: list[Agent]) -> list[proctree.ProcessEntry]:
        """What lives of these lives beside the agents themselves, and what we have inherited."""
        return machinery.left_over([agent.mark for agent in agents], self._own())

    def _own(self, without: Agent | None = None) -> set[int]:
        links = (link.child for way in self._links for link in way)
        own = {child.pid for child in (*self.agents, *links) if child is not without}
        return own | {member.pid for member in self.cluster.members if member.running}

    # -- time ---------------------------------------------------------------------------------------------------

    def tend(self, now: float) -> None:
        """Do what is due: what was held up goes on, what was killed is started again."""
        for entry in [entry for entry in self._due if entry[0] <= now]:
            self._due.remove(entry)
            entry[1]()

    def next_due(self) -> float:
        """When :meth:`tend` has something to do."""
        return min((at for at, _ in self._due), default=float("inf"))

    def heal(self) -> None:
        """No fault lasts any longer, and none is still to come."""
        self.tend(float("inf"))
        for path in (self._board.folder / "faults").glob("*.json"):
            self._board.withdraw(path.stem)

    def _later(self, hold_s: float, what: Callable[[], None]) -> None:
        self._due.append((clock.monotonic() + hold_s, what))

    # -- deeds --------------------------------------------------------------------------------------------------

    def strike(self, strike: Strike) -> str:
        """Do it; in words what was hit, or why there was nothing to hit."""
        deed, agent = strike.deed, self.current(strike.node)
        if deed in _BY_RANK:
            return self._put(strike)
        if deed in (Deed.RANK_KILL, Deed.RANK_STOP, Deed.TRUNCATE):
            cut = _truncate_newest(self.out / "checkpoints") if deed is Deed.TRUNCATE else ""
            return cut + self._hit_rank(strike, signal.SIGSTOP if deed is Deed.RANK_STOP else signal.SIGKILL)
        if deed is Deed.STANDBY_KILL:
            return _hit(_standbys(agent)[strike.local_rank :], agent, signal.SIGKILL)
        if deed is Deed.GUARDIAN_KILL:
            return _hit(_guardians(agent), agent, signal.SIGKILL)
        if deed in (Deed.AGENT_KILL, Deed.NODE_LOSS):
            return self._lose(strike, agent)
        if deed is Deed.AGENT_STOP:
            return self._hold(f"agent-{agent.mark}", strike.hold_s, [agent])
        if deed is Deed.NET_CUT:
            links = [link.child for link in self._links[strike.node]]
            return self._hold(f"net-{strike.node}", strike.hold_s, links)
        return self._hurt_etcd(strike)

    def _put(self, strike: Strike) -> str:
        kind = _BY_RANK[strike.deed]
        group = injector.make_group() if kind is Kind.OOM else None
        if isinstance(group, str):
            return f"left out: {group}"
        if group is not None:
            self._groups.append(group.path)
        rank = 0 if kind is Kind.DISK_FULL else strike.node * RANKS + strike.local_rank
        self._board.put(Fault(kind, id=f"{strike.number}-{kind.value}", rank=rank, after_steps=0), group=group)
        return f"rank {rank} at its next step"

    def _hit_rank(self, strike: Strike, signum: int) -> str:
        agent = self.current(strike.node)
        return _hit(_ranks(agent)[strike.local_rank : strike.local_rank + 1], agent, signum)

    def _lose(self, strike: Strike, agent: Agent) -> str:
        if not agent.alive:
            return "away already"
        doomed = [agent.pid]
        self.struck_down.add(agent.mark)
        if strike.deed is Deed.NODE_LOSS:
            table = machinery.left_over([agent.mark], self._own(without=agent))
            doomed += [entry.pid for entry in table if entry.pid != agent.pid]
        injector.kill_together(doomed)
        agent.wait(_END_S)
        self._later(strike.hold_s, lambda: self.start_agent(agent.node))
        return f"{len(doomed)} processes, pid {agent.pid} first"

    def _hold(self, name: str, hold_s: float, things: Sequence[Child] | Sequence[Member]) -> str:
        if name in self._stopped:
            return "held up already"
        self._stopped.add(name)
        for thing in things:
            thing.send(signal.SIGSTOP)

        def go_on() -> None:
            self._stopped.discard(name)
            for thing in things:
                thing.send(signal.SIGCONT)

        self._later(hold_s, go_on)
        return ""

    def _hurt_etcd(self, strike: Strike) -> str:
        if any(name.startswith("etcd") for name in self._stopped):
            return "etcd is disturbed already"
        members = self.cluster.members
        if strike.deed is Deed.ETCD_STOP:
            return self._hold("etcd", strike.hold_s, members)
        if strike.deed is Deed.MEMBER_STOP:
            return self._hold("etcd-member", strike.hold_s, [members[strike.member % MEMBERS]])
        leader = next((member for member in members if _leads(member)), None)
        if leader is None:
            return "nobody leads"
        self._stopped.add("etcd-leader")
        leader.stop()

        def revive() -> None:
            self._stopped.discard("etcd-leader")
            self.cluster.revive(leader)

        self._later(strike.hold_s, revive)
        return leader.name

    # -- end ----------------------------------------------------------------------------------------------------

    def end_agents(self) -> None:
        """By force."""
        for agent in self.running:
            agent.send(signal.SIGKILL)
            agent.wait(_END_S)

    def close(self) -> None:
        """End everything."""
        self._due.clear()
        self.end_agents()

        def gone() -> bool:
            left = self.left_over(self.agents)
            for entry in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(entry.pid, signal.SIGKILL)
            return not left

        machinery.wait_for(gone, _END_S)
        for child in (*self.agents, *(link.child for way in self._links for link in way)):
            child.close()
        machinery.wait_for(lambda: all(map(injector.remove_group, self._groups)), _END_S)


def _hit(pids: list[int], agent: Agent, signum: int) -> str:
    """Signal the first, if it still is a process of this agent: its number may belong to somebody else by now."""
    for pid in pids:
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(pid)
            try:
                if machinery.carries(pid, [agent.mark]) or pid in _guardians(agent):
                    signal.pidfd_send_signal(pidfd, signum)
                    return f"pid {pid}"
            finally:
                os.close(pidfd)
    return "nobody there"


def _ranks(agent: Agent) -> list[int]:
    """Of the latest generation, by local rank."""
    started = [event["pids"] for event in agent.tail.events if event["event"] == "workers_started"]
    return list(started[-1]) if started else []


def _standbys(agent: Agent) -> list[int]:
    """Also those that still import. A rank that was one before shows the same command line."""
    ranks = _ranks(agent)
    return [pid for pid in _children(agent.pid) if b"--standby" in _command(pid) and pid not in ranks]


def _guardians(agent: Agent) -> list[int]:
    return [pid for pid in _children(agent.pid) if b"guardian" in _command(pid)]


def _children(parent: int) -> Iterator[int]:
    return (entry.pid for entry in proctree.read_table() if entry.ppid == parent)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _leads(member: Member) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{member.endpoint}/metrics", timeout=0.5) as got:
        return b"\netcd_server_is_leader 1\n" in got.read()
    return False


def _truncate_newest(folder: Path) -> str:
    newest = max(folder.glob("step_*.pt"), key=lambda path: int(path.stem[5:]), default=None)
    if newest is None:
        return "no checkpoint yet; "
    with contextlib.suppress(OSError):
        os.truncate(newest, newest.stat().st_size // 2)
    return f"{newest.name}; "
