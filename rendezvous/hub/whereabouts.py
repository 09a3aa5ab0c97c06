"""Whether the meeting point is at this node, and at which of its addresses the others find this node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ftlaunch.rendezvous.common.addresses import is_own_address
from ftlaunch.rendezvous.common.iothread import IoThread
from ftlaunch.rendezvous.common.node import address_towards
from ftlaunch.rendezvous.hub.settings import HubSettings
from ftlaunch.rendezvous.interface import SettingsError

_RETRY_S = 0.5


async def whereabouts(
    io: IoThread, settings: HubSettings, given: str, trouble: Callable[[str], None]
) -> tuple[bool, str]:
    """``given``: the address that the user wants, if any. Waits as long as the name of the host does not resolve."""

    async def is_ours() -> bool:
        return await io.call(lambda: is_own_address(settings.host))

    hosts = settings.is_host if settings.is_host is not None else await is_ours()
    address = settings.host if not given and settings.is_host and await is_ours() else given
    while not address:
        try:
            address = await io.call(lambda: address_towards([(settings.host, settings.port)]))
        except SettingsError as error:
            # A name that does not resolve yet may do so in a moment.
            trouble(str(error))
            await asyncio.sleep(_RETRY_S)
    return hosts, address
