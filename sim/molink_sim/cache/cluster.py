"""Clusters that a trace is played on: a ring of home PCs, and the nodes of the paper.

The paper's prefill nodes (Mooncake, FAST'25) have eight A800 each and a dummy model of the shape of
Llama-2-70B. Their prefill counts as its equations do, `l (a n^2 d + b n d^2)` operations with a = 4
and b = 22, at half of the peak. They answer nothing: other nodes decode, and no time to a first
token depends on those.

The same nodes may be rings, as MoLink has them: each node holds its part of the layers, prompts
pass in spans, and the ring's cache has the room of all its nodes. A stage does its part of those
operations, but a span costs it more than that: it reads its weights for every span, and starts
every layer of it. A node by itself computes a prompt as one, by the equation alone.

KVCache-centric scheduling (its Algorithm 1) is a baseline that only such a cluster can have: it
copies the longest prefix from the node that has it. Between homes that takes longer than computing
it again (docs/prefix-cache.md), so the product has no such copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

from molink.hardware.gpu import LAYER_OVERHEAD_S, MEMORY_EFFICIENCY, STEP_OVERHEAD_S
from molink_scheduler.batch import BatchClass
from molink_scheduler.token_ids import TOKEN_BYTES
from molink_sim.cache.ring import CacheRing
from molink_sim.cache.ring_cost import IDLE, DecodeLoad, PipelineCost, PrefillWork, RingCost
from molink_sim.cache.trace import BLOCK_TOKENS, CacheRequest
from molink_sim.even_ring import even_ring
from molink_sim.scenario import LinkSpec, RingSpec, StageSpec

PAPER_NODES = 8
"""Nodes of the paper's sixteen that compute prompts."""

PAPER_CAPACITY_TOKENS = 3_000_000
"""Tokens that a node's memory for KV holds, 1 TB at 320 KB a token (FAST'25, section 5)."""

LAYERS, WIDTH = 80, 8192
ATTENTION_FACTOR, MATRIX_FACTOR = 4, 22
"""l, d, a and b of the paper's equation 1."""

NODE_FLOPS_PER_S = 8 * 312e12 * 0.5
"""Eight A800 at half of their dense 16-bit peak."""

WEIGHTS_S = LAYERS * MATRIX_FACTOR * WIDTH**2 / (8 * 2039e9 * MEMORY_EFFICIENCY)
"""Reading all weights from the memory of eight A800: a weight of two bytes is two operations of a
token."""

KV_TOKEN_BYTES = 320_000
TRANSFER_BYTES_PER_S = 87e9
"""Rate that the paper's transfer engine reaches over four links of 200 Gbps."""

RING_LINK = LinkSpec(TRANSFER_BYTES_PER_S * 8e-6, 0.001)
"""Link between two nodes of a ring. The delay is assumed: the network's is some microseconds, the
rest is for the software of both ends."""

BALANCING_THRESHOLD = 1.0
"""Mooncake's kvcache_balancing_threshold: a copy is considered once another node's prefix is longer
than the own one by this factor. The paper sets it by hand and does not say to what."""


def home_ring(
    model: str, gpu: str, stages: int, link: LinkSpec, capacity_tokens: int | None = None
) -> PipelineCost:
    """A ring of equal PCs; its memory is what the weights leave, or `capacity_tokens`.

    Raises UserError for a model, device or split that cannot be.
    """
    ring = even_ring(model, gpu, stages, link)
    fits = min(stage.kv_tokens for stage in ring.stages)
    return PipelineCost(ring, capacity_tokens or fits)


@dataclass(frozen=True, slots=True)
class PaperNode:
    """Cost of one prefill node of the paper's cluster."""

    capacity_tokens: int = PAPER_CAPACITY_TOKENS
    answers_here: bool = False

    def prefill(self, cached_tokens: int, tokens: int) -> PrefillWork:
        """Work for a prompt of so many tokens, of which the first ones are cached."""
        operations = _operations(tokens) - _operations(cached_tokens)
        return PrefillWork(operations / NODE_FLOPS_PER_S, 0.0)

    def decode(self, answers: int, context_tokens: float, *, beside_prefill: bool) -> DecodeLoad:
        """No load: other nodes decode."""
        return IDLE


def _operations(tokens: float) -> float:
    return LAYERS * WIDTH * tokens * (ATTENTION_FACTOR * tokens + MATRIX_FACTOR * WIDTH)


@dataclass(frozen=True, slots=True)
class PaperStage:
    """Step times of a node of the paper's cluster that is one of so many stages."""

    stages: int

    def step_s(self, batch_class: BatchClass, rows: int, kv_tokens: int, sequences: int) -> float:
        """Seconds of one step, see `StepCost`: spans of a batch count as equally long."""
        end, each = kv_tokens / sequences, rows / sequences
        operations = sequences * (_operations(end) - _operations(end - each))
        matrix = LAYERS * MATRIX_FACTOR * WIDTH**2 * rows
        matrix_s, attention_s = matrix / NODE_FLOPS_PER_S, (operations - matrix) / NODE_FLOPS_PER_S
        layers_s = hypot(matrix_s, WEIGHTS_S) + attention_s + LAYERS * LAYER_OVERHEAD_S
        return layers_s / self.stages + STEP_OVERHEAD_S


def paper_ring_spec(stages: int, capacity_tokens: int) -> RingSpec:
    """Nodes of the paper's cluster as stages of one ring."""
    stage = StageSpec(LAYERS // stages, PaperStage(stages), capacity_tokens)
    return RingSpec((stage,) * stages, (RING_LINK,) * stages, 2 * WIDTH)


def paper_ring(stages: int, capacity_tokens: int | None = None) -> RingCost:
    """A ring of so many nodes, with the room for KV of all of them, or `capacity_tokens`."""
    capacity_tokens = capacity_tokens or stages * PAPER_CAPACITY_TOKENS
    if stages == 1:
        return PaperNode(capacity_tokens)
    spec = paper_ring_spec(stages, capacity_tokens)
    return PipelineCost(spec, capacity_tokens, answers_here=False)


@dataclass(frozen=True, slots=True)
class KvcacheCentric:
    """Algorithm 1 of Mooncake, with exact times of all prompts that wait."""

    copies: bool = True
    """Whether blocks are copied; without, it is the paper's cache-aware scheduling."""

    def __call__(self, rings: Sequence[CacheRing], request: CacheRequest) -> int:
        """The node with the least time to the first token; a prefix that is copied to it lies there
        from now on."""
        cached = [ring.cached_tokens(request) for ring in rings]
        best = max(cached) if self.copies else 0
        times = [
            self._ttft_s(ring, own, best, request) for ring, own in zip(rings, cached, strict=True)
        ]
        chosen = min(range(len(rings)), key=lambda one: times[one])
        if _copies(cached[chosen], best):
            blocks = -(-best // BLOCK_TOKENS)
            copied = request.blocks[: blocks * TOKEN_BYTES]
            rings[chosen].receive(copied, _transfer_s(best - cached[chosen]))
        return chosen

    def _ttft_s(self, ring: CacheRing, own: int, best: int, request: CacheRequest) -> float:
        if not _copies(own, best):
            return ring.wait_s + ring.cost.prefill(own, request.input_tokens).stage_s
        computed_s = ring.cost.prefill(best, request.input_tokens).stage_s
        return ring.wait_s + _transfer_s(best - own) + computed_s


def _copies(own: int, best: int) -> bool:
    return best > BALANCING_THRESHOLD * own


def _transfer_s(tokens: int) -> float:
    return tokens * KV_TOKEN_BYTES / TRANSFER_BYTES_PER_S
