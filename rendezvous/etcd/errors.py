"""What can go wrong between us and etcd. gRPC's errors are translated in :mod:`.client`, nowhere else."""

from __future__ import annotations

from ftlaunch.rendezvous.interface import RendezvousError


class EtcdError(RendezvousError):
    """Base of this family. Caught in :mod:`.backend`."""


class Unreachable(EtcdError):
    """No answer, or not the one asked for: try again. A write may or may not have been applied."""


class Refused(EtcdError):
    """The server will never do this (wrong password, no permission, not an etcd v3 server): trying again is useless."""


class LeaseGone(EtcdError):
    """The lease does not exist (any more)."""


class LeaseExists(EtcdError):
    """Somebody granted a lease with this id already."""
