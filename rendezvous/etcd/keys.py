"""Where what lies in etcd: everything of one job is under ``/ftlaunch/<job id>/``.

======================  ========================================  ======================  =======================
key                     meaning                                   written by              lives
======================  ========================================  ======================  =======================
``nodes/<node id>``     address, slots, what it asks for          its agent               agent's lease
``machines/<digest>``   which agent has this machine              its agent               agent's lease
``leader``              who decides about the next generation     the first to create it  that agent's lease
``growth``              nodes wait to be taken in                 the leader              that agent's lease
``generations/<n>``     the rank table                            the leader              job lease
``failures/<n>``        who ended generation n, why               the first to create it  job lease
``finish/<node id>``    all ranks of this node succeeded          its agent               job lease
``excluded``            nodes that are left out                   whoever is asked to     job lease
``closed``              the job is over; reason and exit code     the first to create it  tombstone lease
``modules``             what spares may import ahead              group rank 0            job lease
``asks/<name>``         a question to all members, its outcome    who asks                asker's lease
``answers/<attempt>/``  what each member says to a question       that member             asker's lease
======================  ========================================  ======================  =======================

The job lease has an id that follows from the key prefix, so that every agent knows it; the leader renews it. It
outlives the agents for a while: the restart counter and the node order survive the loss of all of them, yet nothing
stays for ever.

An answer is written only while its question is open, and deleted with the outcome.

Keys that everybody watches and keys that only one watches (the leader, or who asks) lie in separate ranges: a thousand
nodes that join, or answer, must not cause a million messages.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True)
class KeyRange:
    """All keys from ``start`` up to, not including, ``end``."""

    start: str
    end: str

    def __contains__(self, key: str) -> bool:
        return self.start <= key < self.end


def below(folder: str) -> KeyRange:
    """All keys that begin with ``folder``, which ends in a slash."""
    return KeyRange(folder, folder[:-1] + chr(ord(folder[-1]) + 1))


@dataclass(frozen=True)
class Keys:
    """The keys of one job. ``prefix`` ends in a slash."""

    prefix: str

    @classmethod
    def of_job(cls, job_id: str, root: str = "/ftlaunch") -> Keys:
        """Any job id will do: what could be mistaken for a separator is escaped."""
        return cls(f"{root.rstrip('/')}/{quote(job_id, safe='')}/")

    def node(self, node_id: str) -> str:
        """Lease-bound: the node is alive, and what it asks for."""
        return f"{self.prefix}nodes/{quote(node_id, safe='')}"

    def machine(self, digest: str) -> str:
        """Lease-bound: one agent per machine."""
        return f"{self.prefix}machines/{digest}"

    def finish(self, node_id: str) -> str:
        """All ranks of this node succeeded."""
        return f"{self.prefix}finish/{quote(node_id, safe='')}"

    def generation(self, number: int) -> str:
        """The rank table of one generation. Zero-padded: etcd sorts keys as strings."""
        return f"{self.prefix}generations/{number:010d}"

    def failure(self, generation: int) -> str:
        """Why a generation ended."""
        return f"{self.prefix}failures/{generation:010d}"

    def ask(self, name: str) -> str:
        """The latest question of this name."""
        return f"{self.prefix}asks/{quote(name, safe='')}"

    def answers(self, attempt: str) -> KeyRange:
        """All answers to one question."""
        return below(f"{self.prefix}answers/{quote(attempt, safe='')}/")

    def answer(self, attempt: str, node_id: str) -> str:
        """What one member says to a question."""
        return f"{self.answers(attempt).start}{quote(node_id, safe='')}"

    @property
    def leader(self) -> str:
        """Who decides."""
        return f"{self.prefix}leader"

    @property
    def growth(self) -> str:
        """Nodes wait to be taken in."""
        return f"{self.prefix}growth"

    @property
    def closed(self) -> str:
        """The job is over."""
        return f"{self.prefix}closed"

    @property
    def asks(self) -> KeyRange:
        """All questions."""
        return below(f"{self.prefix}asks/")

    @property
    def excluded(self) -> str:
        """Nodes that are left out."""
        return f"{self.prefix}excluded"

    @property
    def modules(self) -> KeyRange:
        """The one key that only spares watch."""
        return KeyRange(f"{self.prefix}modules", f"{self.prefix}modules\0")

    @property
    def nodes(self) -> KeyRange:
        """All node keys."""
        return below(f"{self.prefix}nodes/")

    @property
    def finishes(self) -> KeyRange:
        """All finish keys."""
        return below(f"{self.prefix}finish/")

    @property
    def generations(self) -> KeyRange:
        """All rank tables."""
        return below(f"{self.prefix}generations/")

    @property
    def failures(self) -> KeyRange:
        """All failures."""
        return below(f"{self.prefix}failures/")

    @property
    def public(self) -> tuple[KeyRange, ...]:
        """What every agent watches: from ``asks/`` to ``failures/``, and from ``generations/`` to ``leader``."""
        return (
            KeyRange(self.asks.start, f"{self.prefix}finish/"),
            KeyRange(f"{self.prefix}generations/", f"{self.prefix}machines/"),
        )

    @property
    def private(self) -> tuple[KeyRange, ...]:
        """What only the leader watches."""
        return (self.finishes, self.nodes)

    @property
    def job_lease(self) -> int:
        """The id of the lease that holds what outlives single agents: 63 bits, never 0."""
        digest = hashlib.sha256(self.prefix.encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1 | 1
