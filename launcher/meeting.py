"""From the configuration to the rendezvous of this job: the border where its errors become ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ftlaunch.launcher import __version__
from ftlaunch.launcher.config import Config
from ftlaunch.launcher.errors import FtlaunchError, UsageError
from ftlaunch.launcher.exit_codes import ExitCode
from ftlaunch.rendezvous.interface import RendezvousError, SettingsError

if TYPE_CHECKING:
    from ftlaunch.rendezvous.interface import Publish, Rendezvous


class MeetingError(FtlaunchError):
    """The rendezvous could not be reached or used."""

    exit_code = ExitCode.RENDEZVOUS


def translated(error: RendezvousError) -> FtlaunchError:
    """The same in the launcher's family, with the exit code it leads to."""
    return UsageError(str(error)) if isinstance(error, SettingsError) else MeetingError(str(error))


def make_rendezvous(config: Config, publish: Publish) -> Rendezvous:
    """The backend that the configuration names; grpc is imported only for etcd.

    Raises :class:`UsageError` for settings that cannot work, found without any connection.
    """
    try:
        return _MAKERS[config.rendezvous.backend](config, publish)
    except RendezvousError as error:
        raise translated(error) from None


def common_settings(config: Config) -> Mapping[str, str]:
    """What must be the same on all nodes of a job."""
    settings = config.rendezvous
    return {
        "version": __version__,
        "nnodes": f"{settings.min_nodes}:{settings.max_nodes}",
        "nproc_per_node": str(config.workers.nproc),
        "script": config.command.target,
    }


def _local(config: Config, publish: Publish) -> Rendezvous:
    from ftlaunch.rendezvous.local import LocalRendezvous

    settings = config.rendezvous
    return LocalRendezvous(settings.job_id, settings.master_addr, settings.master_port, publish)


def _etcd(config: Config, publish: Publish) -> Rendezvous:
    from ftlaunch.rendezvous.common.node import describe_node
    from ftlaunch.rendezvous.etcd import conf
    from ftlaunch.rendezvous.etcd.backend import EtcdRendezvous

    settings = config.rendezvous
    job = conf.Job(settings.job_id, settings.min_nodes, settings.max_nodes, settings.allow_multiple_agents)
    etcd = conf.settings_from(settings.endpoint, job, settings.conf, {**config.environment, **settings.secrets})
    node = describe_node(common_settings(config), settings.node_rank, settings.local_addr, settings.master_port)
    return EtcdRendezvous(etcd, node, publish)


def _hub(config: Config, publish: Publish) -> Rendezvous:
    from ftlaunch.rendezvous.common.node import describe_node
    from ftlaunch.rendezvous.hub import HubRendezvous, settings_from
    from ftlaunch.rendezvous.hub.settings import Meeting

    settings = config.rendezvous
    host, _, port = settings.endpoint.rpartition(":")
    meeting = Meeting(
        settings.backend,
        host.strip("[]"),
        int(port),
        settings.job_id,
        settings.min_nodes,
        settings.max_nodes,
        settings.node_rank,
    )
    hub = settings_from(meeting, settings.conf, settings.allow_multiple_agents)
    # A static master port is where the nodes meet; the ranks' store gets a fresh one in each generation.
    node = describe_node(common_settings(config), settings.node_rank, settings.local_addr)
    return HubRendezvous(hub, node, publish)


_MAKERS = {"local": _local, "etcd": _etcd, "c10d": _hub, "static": _hub}
