"""The rendezvous of many nodes through etcd. Nothing of gRPC is imported before :meth:`EtcdRendezvous.start`."""

from __future__ import annotations

from ftlaunch.rendezvous.etcd.backend import EtcdRendezvous
from ftlaunch.rendezvous.etcd.conf import Job, settings_from
from ftlaunch.rendezvous.etcd.settings import EtcdSettings

__all__ = ["EtcdRendezvous", "EtcdSettings", "Job", "settings_from"]
