"""Does lossless packing pay on this ring? What it did to the check's texts, as the stages report.

Every stage counts what the codec in use has made of its rows and how long that took; every link
measures its own rate. So the trial needs no figures about processors or models: it is the ring's
own traffic, on its own PCs, however busy they are. One codec serves all links, and the slowest
decides, because there a byte costs most; on a faster one packing costs little, as its rows are the
same.
"""

import asyncio
import math
from collections.abc import Sequence
from itertools import pairwise

from molink.coordinator.members.ring import AgentStage
from molink.stage_protocol.messages import PackingHealth, StageHealth
from molink_scheduler.codec_choice import LosslessTrial
from molink_scheduler.link.facts import LinkReport

__all__ = ["await_trial", "trial_of"]

REPORTS_WITHIN_S = 5.0
"""Ten times what a stage waits between two reports; a ring that is lost must not hold up its own
end."""


async def await_trial(
    stages: Sequence[AgentStage], upload_mbps: float | None
) -> LosslessTrial | None:
    """The trial, once every stage has reported the texts that went round; None when one does
    not, or when there is no link between stages."""
    try:
        async with asyncio.timeout(REPORTS_WITHIN_S):
            while True:
                healths = await asyncio.gather(*(stage.next_health() for stage in stages))
                trial = trial_of(healths, upload_mbps)
                if trial is not None or len(stages) < 2:
                    return trial
    except TimeoutError:
        return None


def trial_of(healths: Sequence[StageHealth], upload_mbps: float | None) -> LosslessTrial | None:
    """The trial of the slowest hop between stages; None while a figure is missing."""
    hops = [_hop(sender, receiver, upload_mbps) for sender, receiver in pairwise(healths)]
    known = [hop for hop in hops if hop is not None]
    if not known or len(known) < len(hops):
        return None
    return min(known, key=lambda hop: hop.link_bytes_per_s)


def _hop(
    sender: StageHealth, receiver: StageHealth, upload_mbps: float | None
) -> LosslessTrial | None:
    rate_mbps = min(_next_link(sender).rate_mbps, upload_mbps or math.inf)
    if not (rate_mbps > 0 and _is_known(sender.packed) and _is_known(receiver.unpacked)):
        return None
    return LosslessTrial(
        size_ratio=sender.packed.packed_bytes / sender.packed.raw_bytes,
        encode_bytes_per_s=sender.packed.raw_bytes / sender.packed.seconds,
        decode_bytes_per_s=receiver.unpacked.raw_bytes / receiver.unpacked.seconds,
        link_bytes_per_s=rate_mbps * 1e6 / 8,
    )


def _next_link(health: StageHealth) -> LinkReport:
    return next(link for link in health.links if link.name == "next")


def _is_known(figures: PackingHealth) -> bool:
    return figures.codec == "lossless" and figures.raw_bytes > 0 and figures.seconds > 0
