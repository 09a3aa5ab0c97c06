"""Leaving a node out, or letting it in again, from any node: read, decide, write; anew if somebody else was faster."""

from __future__ import annotations

import asyncio
from functools import partial

from ftlaunch.rendezvous.common.exclusion import ANSWER_S, plan
from ftlaunch.rendezvous.common.leading import limits_of
from ftlaunch.rendezvous.etcd.mirror import Mirror
from ftlaunch.rendezvous.etcd.site import Site
from ftlaunch.rendezvous.etcd.watch import read_ranges
from ftlaunch.rendezvous.interface import ExclusionAnswer, ExclusionWish, RendezvousError


async def exclude(site: Site, wish: ExclusionWish) -> ExclusionAnswer:
    """Raises :class:`RendezvousError`."""
    try:
        return await asyncio.wait_for(_exclude(site, wish), ANSWER_S)
    except asyncio.TimeoutError:
        raise RendezvousError(f"etcd did not answer within {ANSWER_S:g} s") from None


async def _exclude(site: Site, wish: ExclusionWish) -> ExclusionAnswer:
    settings, ranges = site.settings, (*site.keys.public, *site.keys.private)
    limits = limits_of(settings)
    while True:
        mirror = Mirror(site.keys)
        mirror.apply(await site.ask(lambda: read_ranges(site.client, ranges)))
        record, answer = plan(wish, site.node.host, mirror.view(), mirror.roster(), limits)
        former = mirror.get(site.keys.excluded)
        if record is None or await site.ask(partial(site.job.exclude, record, former)):
            return answer
