"""Clusters that a trace is played on: rings of home PCs, and nodes of the paper as rings.

The paper's prefill nodes (Mooncake, FAST'25) have eight A800 each and a dummy model of the shape of
Llama-2-70B. Their prefill counts as its equations do, `l (a n^2 d + b n d^2)` operations with a = 4
and b = 22, at half of the peak. They answer nothing: other nodes decode, and no time to a first
token depends on those.

Here each node, or several together, is a ring as MoLink has it: prompts pass in spans, and the
ring's cache has the room of all its nodes. A stage does its part of those operations, and reads its
weights and starts every layer of it for every span.
"""

from dataclasses import dataclass
from math import hypot

from molink.hardware.gpu import LAYER_OVERHEAD_S, MEMORY_EFFICIENCY, STEP_OVERHEAD_S
from molink_scheduler.batch import BatchClass
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

TRANSFER_BYTES_PER_S = 87e9
"""Rate that the paper's transfer engine reaches over four links of 200 Gbps."""

RING_LINK = LinkSpec(TRANSFER_BYTES_PER_S * 8e-6, 0.001)
"""Link between two nodes of a ring. The delay is assumed: the network's is some microseconds, the
rest is for the software of both ends."""


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


def paper_ring(stages: int, capacity_tokens: int | None = None) -> RingSpec:
    """So many nodes of the paper's cluster as stages of one ring, with the room for KV of all of
    them, or `capacity_tokens`."""
    capacity_tokens = capacity_tokens or stages * PAPER_CAPACITY_TOKENS
    stage = StageSpec(LAYERS // stages, PaperStage(stages), capacity_tokens)
    return RingSpec((stage,) * stages, (RING_LINK,) * stages, 2 * WIDTH)
