"""What of a model decides how long a stage computes and how much memory it takes.

A handful of numbers is enough: a step reads every weight of the stage once, multiplies every row
with them, and reads the keys and values that its rows attend to. Norms and biases are left out;
they are less than one weight in a thousand.

Counts are parameters or values; what is bytes says so in its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from molink.checkpoint.mixers import STATE_CONTEXT_TOKENS
from molink_scheduler.placement import ModelCost

__all__ = [
    "ELEMENT_BYTES",
    "PLAIN",
    "KvDtype",
    "ModelShape",
    "PlannedModel",
    "WeightBits",
    "kv_bytes",
]

ELEMENT_BYTES = (2, 4)
"""Of the formats that stages compute in: 16 bits, and fp32 where a CPU has no arithmetic for 16."""

KvDtype = Literal["auto", "int8"]
"""How KV is kept: as the stage computes, or in int8 with a scale for each token and head."""

KV_SCALE_BYTES = 2

WIRE_BYTES_PER_VALUE = 2
"""Stages hand on the residual stream in 16 bits, whatever the weights are stored in."""


def kv_bytes(kv_dtype: KvDtype, element_bytes: int, values: int, vectors: int) -> int:
    """Bytes of keys and values: so many numbers in so many vectors, one for each head."""
    if kv_dtype == "int8":
        return values + KV_SCALE_BYTES * vectors
    return values * element_bytes


@dataclass(frozen=True, slots=True)
class WeightBits:
    """What one weight of a matrix takes in the memory of a stage."""

    code_bits: int = 0
    """Of its code, where it is quantized."""
    numbers: float = 1.0
    """In the stage's own format: a plain weight is one, a quantized one has its part of a group's
    scale, and of its zero."""

    def bytes_in(self, element_bytes: int) -> float:
        """Bytes in a stage whose numbers take `element_bytes`."""
        return self.code_bits / 8 + self.numbers * element_bytes


PLAIN = WeightBits()


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The shape of a decoder-only transformer; `model_shape` reads one from a config.json."""

    name: str
    layers: int
    hidden_size: int
    intermediate_size: int
    """Width of the MLP, or of one expert."""
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied_embeddings: bool
    attention_parameters: int
    """Of one layer: the projections to queries, keys and values and back. In a hybrid model this
    and the next two are means over all layers, of which some have a recurrence instead."""
    attention_width: int
    """Query heads times the sizes of a key and of a value: half the FLOPs of a row and a key."""
    kv_values: int
    """Numbers that a layer keeps for one token."""
    mlp_matrices: int = 3
    """Three where a gate multiplies (SwiGLU and its like), two where not."""
    experts: int = 1
    experts_per_token: int = 1
    shared_intermediate_size: int = 0
    """Width of the expert that every row passes, beside those that it chooses."""
    dtype_bytes: int = 2
    """Of embeddings, activations and KV."""
    state_bytes: int = 0
    """States of one request in one layer, whatever its length: a mean over all layers."""
    weights: WeightBits = PLAIN
    """Of the MLP, or of experts."""
    attention_weights: WeightBits = PLAIN
    """Of attention: plain where only experts are quantized, as in MXFP4."""
    kv_dtype: KvDtype = "auto"

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert of one layer; of a dense model, of the whole MLP."""
        return self.mlp_matrices * self.hidden_size * self.intermediate_size

    @property
    def dense_parameters(self) -> int:
        """Parameters of one layer that every row passes: attention, shared expert, router."""
        return self.attention_parameters + self._shared_parameters + self._router_parameters

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer, all experts included."""
        return self.dense_parameters + self.experts * self.expert_parameters

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the table that turns token ids into rows."""
        return self.vocabulary * self.hidden_size

    @property
    def head_parameters(self) -> int:
        """Parameters of the matrix that turns rows into logits; tied, it is that table."""
        return self.vocabulary * self.hidden_size

    @property
    def parameters(self) -> int:
        """Parameters of the whole model; a tied table counts once."""
        tables = 1 if self.tied_embeddings else 2
        return self.layers * self.layer_parameters + tables * self.embedding_parameters

    @property
    def expert_bytes(self) -> float:
        """Bytes of one expert of one layer; of a dense model, of the whole MLP."""
        return self.expert_parameters * self.weights.bytes_in(self.dtype_bytes)

    @property
    def dense_bytes(self) -> float:
        """Bytes of what every row passes in one layer."""
        return self._dense_bytes_in(self.dtype_bytes)

    @property
    def layer_bytes(self) -> int:
        """Bytes of the weights of one layer in memory."""
        return self.layer_bytes_in(self.dtype_bytes)

    def layer_bytes_in(self, element_bytes: int) -> int:
        """The same in a stage whose numbers take `element_bytes`; with 0 of codes alone."""
        experts = self.experts * self.expert_parameters * self.weights.bytes_in(element_bytes)
        return round(self._dense_bytes_in(element_bytes) + experts)

    @property
    def table_bytes(self) -> int:
        """Bytes of the embedding table, and of the head's matrix."""
        return self.embedding_parameters * self.dtype_bytes

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of the keys and values of one token in one layer."""
        return kv_bytes(self.kv_dtype, self.dtype_bytes, self.kv_values, self.kv_vectors)

    @property
    def kv_vectors(self) -> int:
        """Keys and values of one token in one layer, each of one head."""
        return 2 * self.kv_heads

    @property
    def row_flops(self) -> int:
        """Multiplications and additions of one row in one layer's matrices."""
        active = self.dense_parameters + self.experts_per_token * self.expert_parameters
        return 2 * active

    @property
    def row_bytes(self) -> int:
        """Bytes of one row between stages."""
        return self.hidden_size * WIRE_BYTES_PER_VALUE

    def experts_hit(self, rows: int) -> float:
        """How many experts of a layer `rows` rows are expected to choose, each its own at random.

        Real routers lean to some experts, so this is an upper bound.
        """
        if self.experts == 1:
            return 1
        missed = (1 - self.experts_per_token / self.experts) ** rows
        return self.experts * (1 - missed)

    def stage_bytes(self, layers: int, is_head: bool, is_tail: bool) -> int:
        """Weights that a stage of `layers` layers keeps in memory."""
        both_tied = is_head and is_tail and self.tied_embeddings
        tables = 1 if both_tied else int(is_head) + int(is_tail)
        return layers * self.layer_bytes + tables * self.table_bytes

    @property
    def cost(self) -> ModelCost:
        """Costs of the model by its shape: all layers alike. A request's states are counted with
        the KV of an ordinary conversation's tokens."""
        return ModelCost(
            layer_bytes=(self.layer_bytes,) * self.layers,
            kv_bytes=self.kv_token_bytes + -(-self.state_bytes // STATE_CONTEXT_TOKENS),
            row_bytes=self.row_bytes,
            head_bytes=self.table_bytes,
            tail_bytes=self.table_bytes,
            tied=self.tied_embeddings,
        )

    def _dense_bytes_in(self, element_bytes: int) -> float:
        """No router is quantized."""
        attention = self.attention_parameters * self.attention_weights.bytes_in(element_bytes)
        shared = self._shared_parameters * self.weights.bytes_in(element_bytes)
        return attention + shared + self._router_parameters * element_bytes

    @property
    def _shared_parameters(self) -> int:
        return self.mlp_matrices * self.hidden_size * self.shared_intermediate_size

    @property
    def _router_parameters(self) -> int:
        return self.hidden_size * self.experts if self.experts > 1 else 0


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model's shape, and what it takes of each node by its shape or its weight files."""

    name: str
    shape: ModelShape
    costs: Mapping[int, ModelCost]
    """By the bytes of a number in the stages, see ELEMENT_BYTES."""
    measured: bool = False
    """Whether the sizes are those of weight files, not of shapes."""

    @classmethod
    def of_shape(cls, shape: ModelShape) -> "PlannedModel":
        """Plan a model of which only the config is known."""
        costs = {size: replace(shape, dtype_bytes=size).cost for size in ELEMENT_BYTES}
        return cls(shape.name, shape, costs)

    @property
    def cost(self) -> ModelCost:
        """Costs in stages that compute in the format of the checkpoint's own numbers."""
        return self.costs[4 if self.shape.dtype_bytes == 4 else 2]
