"""The rendezvous of many nodes through etcd. Nothing of gRPC is imported before :meth:`EtcdRendezvous.start`."""

from __future__ import annotations

from ftlaunch.rendezvous.common.node import NodeDescription, describe_node
from ftlaunch.rendezvous.etcd.backend import EtcdRendezvous
from ftlaunch.rendezvous.etcd.conf import Job, settings_from
from ftlaunch.rendezvous.etcd.settings import EtcdSettings

__all__ = ["EtcdRendezvous", "EtcdSettings", "Job", "NodeDescription", "describe_node", "settings_from"]
