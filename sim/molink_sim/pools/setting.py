"""A cluster of pools: how many nodes of each role, the line between them, and their rules."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from molink_scheduler.kv.prefix_tree import PrefixTree
from molink_scheduler.routing.admission import NO_TARGETS, AdmissionPolicy, Targets
from molink_scheduler.routing.conductor import THRESHOLD
from molink_sim.cache.cluster import PAPER_CAPACITY_TOKENS, TRANSFER_BYTES_PER_S
from molink_sim.cache.trace import BLOCK_TOKENS, CacheRequest

POLICIES = ("random", "load", "cache-aware", "kvcache-centric")
"""Choices of a prefill node (FAST'25, figure 5): any; the shortest queue; the soonest by what each
has cached; Algorithm 1, which copies besides."""


@dataclass(frozen=True, slots=True)
class PoolsSetting:
    """Nodes by role, and what they do."""

    prefill: int = 0
    decode: int = 0
    both: int = 0
    """Nodes that compute prompts and decode; where there are some, there are no others."""
    line_bytes_per_s: float = TRANSFER_BYTES_PER_S
    """Rate of each node's line to all others."""
    policy: str = "kvcache-centric"
    threshold: float = THRESHOLD
    admission: AdmissionPolicy = AdmissionPolicy.ACCEPT
    targets: Targets = NO_TARGETS
    checks_again: bool = True
    """Whether a decode node refuses who would miss the target when its KV is there (step 4)."""
    ends_at_random: bool = False
    """Whether `PREDICTED` lets answers end at random, as the product's forecast has it, and not all
    after the same time."""
    answer_s: float | None = None
    """Time that each answer takes by `PREDICTED` (the paper's t_d); None: the mean of those that
    have ended."""
    capacity_tokens: int = PAPER_CAPACITY_TOKENS
    """Cached tokens in a node's main memory; 0: nothing is cached."""
    rows_max: int | None = None
    """Requests at a time on a node that does both; None: what its cards hold."""
    chunk_tokens: int | None = None
    """Tokens of a prompt that such a node computes together with a decode step; None: whole
    prompts, before any decode step."""
    seed: int = 0

    def __post_init__(self) -> None:
        assert self.policy in POLICIES, "a policy that there is"
        assert (self.both > 0) != (min(self.prefill, self.decode) > 0), (
            "two pools, or nodes of both"
        )

    @property
    def name(self) -> str:
        """As the paper writes it: 3P+1D, or 4M."""
        return f"{self.both}M" if self.both else f"{self.prefill}P+{self.decode}D"


@dataclass(slots=True)
class PooledRequest:
    """What became of a request."""

    number: int
    request: CacheRequest
    refused: str = ""
    """`arrival`: before anything was computed for it; `decode`: after its prompt was."""
    first_s: float | None = None
    end_s: float | None = None
    cached_tokens: int = 0
    copied_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """Seconds to its first token; infinite: none came."""
        return float("inf") if self.first_s is None else self.first_s - self.request.at_s

    @property
    def gap_s(self) -> float:
        """Mean time between its tokens; infinite: its last one did not come."""
        if self.end_s is None or self.first_s is None:
            return float("inf")
        return (self.end_s - self.first_s) / max(1, self.request.output_tokens - 1)

    @property
    def computed_tokens(self) -> int:
        """Tokens of its prompt that were computed."""
        return 0 if self.first_s is None else self.request.input_tokens - self.cached_tokens


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """Loads of both pools at a moment, each over its target (the paper's section 6.1)."""

    at_s: float
    prefill: float
    decode: float


@dataclass(slots=True)
class PoolsOutcome:
    """Outcome of a run."""

    served: Sequence[PooledRequest]
    loads: list[PoolLoad] = field(default_factory=list)
    occupied_byte_s: float = 0.0
    """Bytes times seconds that prompts' KV took of the cards that computed it."""
    whole_byte_s: float = 0.0
    """The same if no layer left before the prompt was computed."""

    @property
    def taken(self) -> list[PooledRequest]:
        """Requests that were not refused."""
        return [one for one in self.served if not one.refused]

    @property
    def ttfts_s(self) -> list[float]:
        """Times to the first token of those."""
        return [one.ttft_s for one in self.taken]

    @property
    def tpots_s(self) -> list[float]:
        """Mean gaps of those with more than one token."""
        return [one.gap_s for one in self.taken if one.request.output_tokens > 1]

    @property
    def cached_share(self) -> float:
        """Share of prompt tokens that were not computed, of those with a first token."""
        begun = [one for one in self.served if one.first_s is not None]
        tokens = sum(one.request.input_tokens for one in begun)
        return sum(one.cached_tokens for one in begun) / max(1, tokens)

    def good(self, targets: Targets) -> int:
        """Requests that met both targets."""
        return sum(targets.missed_by(one.ttft_s, one.gap_s) <= 1 for one in self.taken)

    def refused(self, where: str = "") -> int:
        """Requests that were refused, or refused there."""
        return sum(bool(one.refused) and where in ("", one.refused) for one in self.served)

    @property
    def wasted_share(self) -> float:
        """Share of computed prompt tokens whose requests were refused afterwards."""
        computed = sum(one.computed_tokens for one in self.served)
        wasted = sum(one.computed_tokens for one in self.served if one.refused)
        return wasted / max(1, computed)


@dataclass(slots=True)
class NodeCache:
    """What a node's main memory holds of prompts: the product's tree of chains and its LRU."""

    capacity_tokens: int
    tree: PrefixTree = field(default_factory=lambda: PrefixTree("lru", block_tokens=1))

    def cached_tokens(self, request: CacheRequest) -> int:
        """Cached tokens of a prompt; its last one always is computed."""
        if not self.capacity_tokens:
            return 0
        blocks = self.tree.find("", request.blocks).blocks
        return min(blocks * BLOCK_TOKENS, request.input_tokens - 1)

    def keep(self, request: CacheRequest) -> None:
        """Cache a prompt, making room."""
        if self.capacity_tokens:
            self.tree.unpin(self.tree.extend("", request.blocks)[0])
            over = self.tree.blocks - self.capacity_tokens // BLOCK_TOKENS
            self.tree.drop(max(0, over))
