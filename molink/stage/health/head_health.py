"""Health figures of a ring's head, beside those that every stage reports."""

from collections.abc import Iterator
from dataclasses import replace

from molink.stage_protocol.health import (
    WITHOUT_ROOM_MAX,
    CacheTiersHealth,
    DrafterHealth,
    StageHealth,
)
from molink_scheduler.head.kv_book import KvBook
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.tiers import FILE, HOST
from molink_scheduler.stage.core import WorkSource


def with_head(health: StageHealth, source: WorkSource, now: float) -> StageHealth:
    """A report with what a head knows, where the source of the stage's work is one."""
    if not isinstance(source, HeadScheduler):
        return health
    round_s, prompt_s = source.round_waits_s(now), source.prompt_waits_s(now)
    progress = replace(health.progress, round_waits_s=round_s, prompt_waits_s=prompt_s)
    return replace(
        health,
        requests_running=source.running_count,
        requests_waiting=source.waiting_count,
        micro_batch_count=source.micro_batches.count,
        progress=progress,
        cache_tiers=_cache_tiers(source.book),
        without_room=tuple(_without_room(source))[:WITHOUT_ROOM_MAX],
        drafters=tuple(_drafters(source)),
    )


def _drafters(head: HeadScheduler) -> Iterator[DrafterHealth]:
    """Figures of those that draft on the tail, and have."""
    for name, one in head.decode.drafts.tallies.items():
        if one.rounds:
            yield DrafterHealth(name, one.rounds, one.drafts, one.tried, one.right)


def _without_room(head: HeadScheduler) -> Iterator[int]:
    """Ids of the requests that wait until the ring counts with more room."""
    away = (one for one in head.prompts.waiting if head.book.room_is_away(one))
    return (one.request_id for one in away)


def _cache_tiers(book: KvBook) -> CacheTiersHealth | None:
    """Health of the cache's tiers; None where nothing is cached below the devices' memory."""
    fetches, tree = book.fetches, book.cache.tree
    if not (book.cache.is_on and book.cache.tiers.has_room):
        return None
    return CacheTiersHealth(
        host_tokens=BLOCK_TOKENS * tree.blocks_in[HOST],
        file_tokens=BLOCK_TOKENS * tree.blocks_in[FILE],
        fetched_tokens=BLOCK_TOKENS * fetches.fetched_blocks,
        lost_tokens=BLOCK_TOKENS * fetches.lost_blocks,
    )
