"""Prefix cache of a ring as `GET /cluster` tells of it, and its metrics."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from molink.report.capability import Family, RingCapability


@dataclass(frozen=True, slots=True)
class CachedBelow:
    """Tokens of a ring cached below its devices' memory."""

    host_tokens: int
    """Tokens cached in host memory."""
    file_tokens: int
    """Tokens cached on disk."""
    fetched_tokens: int
    """Tokens that came back into the devices since the head's start."""
    lost_tokens: int
    """Tokens that could not be read back in time since the head's start."""


@dataclass(frozen=True, slots=True)
class CacheReport:
    """Prefix cache of a ring."""

    tokens: int | None
    """Tokens of prompts to come that the devices hold; None: not told."""
    requests: int
    """Prompts that the ring has begun to answer."""
    hit_rate: float | None
    """Part of their tokens that was cached, 0 to 1; None: of none."""
    recent_hit_rate: float | None
    """Part of the last hundred prompts' tokens that was cached, 0 to 1; None: of none."""
    tiers: CachedBelow | None
    """Tokens cached below; None: there is no room."""


def cache_families(caches: Sequence[CacheReport]) -> Iterator[Family]:
    """Metrics of tokens that all rings have cached in each tier, or that came from lower ones."""
    below = [one.tiers for one in caches if one.tiers is not None]
    tokens = {"device": sum(one.tokens or 0 for one in caches)}
    came = {}
    if below:
        tokens["host"] = sum(one.host_tokens for one in below)
        tokens["file"] = sum(one.file_tokens for one in below)
        came["fetched"] = sum(one.fetched_tokens for one in below)
        came["lost"] = sum(one.lost_tokens for one in below)
    yield "molink_prefix_cache_tokens", "Cached tokens by tier.", "tier", tokens
    yield "molink_prefix_cache_fetched_tokens_total", "From lower tiers.", "outcome", came


PREFIX_CACHE = RingCapability("prefix_cache", cache_families)
