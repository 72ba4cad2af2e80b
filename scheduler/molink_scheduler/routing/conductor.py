"""Mooncake's Conductor: which node computes a prompt, which one decodes its answer, or nobody.

Algorithm 1 of Qin et al. (arXiv 2407.00079), whole. Prompts are computed by nodes of one pool,
answers by nodes of another, and KV goes from one to the other. Of each prefill node it is forecast
when the first token would come: what waits there, and what of the prompt is not cached there.
Where the longest prefix that any node has is longer than its own by `threshold` times or more, the
missing part is copied first, which takes its time and leaves a hot prefix in one more place. The
soonest node wins; of decode nodes the least loaded. Who would miss a target is refused.

Whether an answer decodes fast enough is asked for the moment when its prompt will be computed.
The paper's prediction (section 6.4) lets every answer take one time: `decoding_at`.

Pure.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from molink_scheduler.routing.admission import NO_TARGETS, Targets

THRESHOLD = 1.5
"""Ratio of the longest prefix to a node's own from which it is copied. The paper sets it by hand
and does not say to what."""

NO_COPIES = math.inf
"""Threshold of the paper's cache-aware policy: every node has what it has computed."""


class NodePrices(Protocol):
    """Times of a prefill node, in seconds."""

    def prefill_s(self, tokens: int, cached_tokens: int) -> float:
        """Time to compute a prompt of so many tokens, of which so many are cached."""

    def transfer_s(self, tokens: int) -> float:
        """Time to copy the KV of so many tokens from another node."""


@dataclass(frozen=True, slots=True)
class PrefillNode:
    """State of a node that computes prompts, as a request sees it."""

    queue_s: float
    """Seconds until all that waits there is computed."""
    cached_tokens: int = 0
    """Cached tokens of the request's prompt."""


class Prefill(NamedTuple):
    """A prefill node for a prompt."""

    node: int
    ttft_s: float
    cached_tokens: int
    """Tokens that it does not compute, those that are copied included."""
    source: int | None = None
    """Node that the longest prefix is copied from; None: nothing is copied."""


class Pair(NamedTuple):
    """The two nodes of a request that is taken."""

    prefill: Prefill
    decode: int
    tbt_s: float


def choose_prefill(
    nodes: Sequence[PrefillNode],
    prompt_tokens: int,
    prices: NodePrices,
    threshold: float = THRESHOLD,
) -> Prefill:
    """The node that has the first token soonest; of equals the first."""
    assert nodes and threshold > 0, "there is a node, and a ratio above 0"
    best = max(range(len(nodes)), key=lambda one: nodes[one].cached_tokens)
    found = (
        _forecast(nodes, one, best, prompt_tokens, prices, threshold) for one in range(len(nodes))
    )
    return min(found, key=lambda one: one.ttft_s)


def _forecast(
    nodes: Sequence[PrefillNode],
    one: int,
    best: int,
    prompt_tokens: int,
    prices: NodePrices,
    threshold: float,
) -> Prefill:
    own, longest = nodes[one].cached_tokens, nodes[best].cached_tokens
    missing = longest - own
    if not missing or longest < threshold * own or threshold == NO_COPIES:
        return Prefill(one, nodes[one].queue_s + prices.prefill_s(prompt_tokens, own), own)
    ttft_s = (
        prices.transfer_s(missing) + nodes[one].queue_s + prices.prefill_s(prompt_tokens, longest)
    )
    return Prefill(one, ttft_s, longest, best)


def conduct(
    prefill: Prefill,
    decode_loads: Sequence[float],
    tbt_s: Callable[[int, float], float],
    targets: Targets = NO_TARGETS,
) -> Pair | None:
    """The pair for a request whose prefill node is chosen; None: it would miss a target.

    `tbt_s(node, after_s)` forecasts the time between two tokens of a newcomer on a decode node that
    begins after so many seconds; of `decode_loads` the least is taken.
    """
    assert decode_loads, "there is a decode node"
    decode = min(range(len(decode_loads)), key=decode_loads.__getitem__)
    pair = Pair(prefill, decode, tbt_s(decode, prefill.ttft_s))
    return None if targets.missed_by(prefill.ttft_s, pair.tbt_s) > 1 else pair


def decoding_at(
    after_s: float, ages_s: Iterable[float], begin_s: Iterable[float], answer_s: float
) -> int:
    """Answers that decode after so long where each takes `answer_s`: of those that have decoded for
    `ages_s`, and of those that begin in `begin_s` (the paper's uniform t_d)."""
    staying = sum(age_s + after_s < answer_s for age_s in ages_s)
    return staying + sum(0 <= after_s - one_s < answer_s for one_s in begin_s)


def occupancy_byte_s(kv_bytes: float, prefill_s: float, send_s: float, layers: int) -> float:
    """Bytes times seconds that a prompt's KV takes of a prefill node's device (section 4.2) where
    each layer leaves as soon as it is computed; `layers` of 1: all leave together, at the end.

    Layers take the same time each, and are sent one after the other, `send_s` for all.
    """
    assert layers >= 1, "a model has layers"
    each_s, sent_s = prefill_s / layers, send_s / layers
    waits_s = max(0.0, sent_s - each_s) * (layers - 1) / 2
    return kv_bytes * (each_s + sent_s + waits_s)
