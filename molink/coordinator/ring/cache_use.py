"""A ring's prompt cache: its hit rate, since its start and of late, and whose rows it holds.

The rate is a share of tokens, not of requests: a hit of one block of a long prompt saves next to
nothing. Of each request only its first admission counts; one that is preempted, or computed anew
after a loss, finds what it has itself computed. Prompts whose own tokens are scored are computed
whole, whatever is cached, so they are no misses (`LiveSequence.answered`).
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from molink.coordinator.nodes.node import Node
from molink.report.prefix_cache import CachedBelow, CacheReport
from molink.report.shared_fields import report_of
from molink.stage_protocol.health import StageHealth

RECENT_REQUESTS = 100
"""Requests behind the recent hit rate: one of them is 1 %, and a changed crowd shows in minutes."""


@dataclass(slots=True)
class CacheUse:
    """Prompts that a ring has begun to answer, and how much of them was cached."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    _recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RECENT_REQUESTS))
    """Tokens of each prompt, and of those the cached ones."""

    def began(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Count a request; what a tail reports cannot be more than the prompt, nor less than
        nothing."""
        cached_tokens = max(0, min(cached_tokens, prompt_tokens))
        self.requests += 1
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self._recent.append((prompt_tokens, cached_tokens))

    def report(self, head: StageHealth | None) -> CacheReport:
        """Use of the cache so far; the head knows what is cached on all stages."""
        recent = [sum(one) for one in zip(*self._recent, strict=True)] or [0, 0]
        tiers = head.cache_tiers if head is not None else None
        return CacheReport(
            tokens=None if head is None else head.kv_tokens_cached,
            requests=self.requests,
            hit_rate=_share(self.cached_tokens, self.prompt_tokens),
            recent_hit_rate=_share(recent[1], recent[0]),
            tiers=None if tiers is None else report_of(CachedBelow, tiers),
        )


@dataclass(slots=True)
class CacheSources:
    """Nodes that have computed for a ring since its cache was cleared."""

    _nodes: dict[str, Node] = field(default_factory=dict)

    def update(self, nodes: Iterable[Node]) -> bool:
        """Note who computes now. Whether the cache must be cleared: once a node is quarantined or
        removed, since of its rows others may have made KV."""
        known = self._nodes.values()
        is_spoilt = any(one.quarantined or one.presence is None for one in known)
        if is_spoilt:
            self._nodes.clear()
        self._nodes |= {node.node_id: node for node in nodes}
        return is_spoilt


def _share(part: int, whole: int) -> float | None:
    """None: of nothing."""
    return round(part / whole, 4) if whole else None
