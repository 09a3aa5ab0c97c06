"""The ``c10d`` and ``static`` rendezvous: many nodes that meet at an address of one of them, without any server.

The agent of that node hosts the meeting point (:mod:`.server`), which lives and dies with it; for a job that must
survive the loss of any node there is etcd. Nothing of torch is needed: the ranks' own store is started by rank 0 as
always, at a fresh port for each generation.
"""

from __future__ import annotations

from ftlaunch.rendezvous.hub.backend import HubRendezvous
from ftlaunch.rendezvous.hub.settings import HubSettings, settings_from

__all__ = ["HubRendezvous", "HubSettings", "settings_from"]
