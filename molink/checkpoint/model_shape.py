"""Shape of a model, which decides how long a stage computes and how much memory it takes.

A handful of numbers is enough: a step reads every weight of the stage once, multiplies every row
with them, and reads the keys and values that its rows attend to. Norms and biases are left out;
they are less than one weight in a thousand.

Counts are parameters or values; what is bytes says so in its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from molink.checkpoint.kv_format import KvDtype, kv_bytes
from molink.checkpoint.layers_together import Runs
from molink.checkpoint.mixers import NO_STATE, NO_WINDOWS, StateSize, Windows
from molink.checkpoint.quantized.declared import DeclaredQuantization
from molink_scheduler.model_cost import DraftCost, ModelCost

ELEMENT_BYTES = (2, 4)
"""Bytes of a number as stages compute: 16 bits, and fp32 where a CPU has no arithmetic for 16."""

WeightFormat = Literal[
    "plain", "int4_g128", "int4_g32", "int8", "int8_g32", "int8_g16", "mxfp4", "fp8"
]
"""How stages hold weights, as far as it makes products slower or faster: as numbers, or in codes by
the size of their groups. int4_g128 and int8 stand for all groups of 64 and more; blocks of GGUF
files are int4_g32 (Q4), int8_g32 (Q5, Q8_0), int8_g16 (Q6_K) and mxfp4."""

WIRE_BYTES_PER_VALUE = 2
"""Stages hand on the residual stream in 16 bits, whatever the weights are stored in."""


TOKEN_ID_BYTES = 4

TOKEN_MATRICES = 3
"""Matrices in a layer that reads of the token: from the embedding, from the row, and back."""


@dataclass(frozen=True, slots=True)
class WeightBits:
    """Bits and numbers that one weight of a matrix takes in the memory of a stage."""

    code_bits: int = 0
    """Bits of the weight's code, where it is quantized."""
    numbers: float = 1.0
    """Numbers in the stage's own format: a plain weight is one, a quantized one has its part of a
    group's scale, and of its zero."""
    format: WeightFormat = "plain"

    def bytes_in(self, element_bytes: int) -> float:
        """Bytes in a stage whose numbers take `element_bytes`."""
        return self.code_bits / 8 + self.numbers * element_bytes


PLAIN = WeightBits()
PLAIN_WEIGHTS = DeclaredQuantization()


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
    """Parameters of one layer's attention: projections to queries, keys and values and back. In a
    hybrid model this and the next three are means over all layers; some recur instead."""
    attention_width: int
    """Query heads times the sizes of a key and of a value: half the FLOPs of a row and a key."""
    decode_attention_width: int
    """Attention width of decode rows: in latent attention they meet longer rows, of which keys and
    values are not made."""
    expansion_parameters: int
    """Parameters of the matrices that make keys and values of one token's latent row, once more for
    each span of a prompt that sees it."""
    kv_values: int
    """Numbers that an attending layer keeps for one token."""
    kv_vectors: int
    """Vectors in which an attending layer keeps one token; each has a scale in int8."""
    mlp_matrices: int = 3
    """Three where a gate multiplies (SwiGLU and its like), two where not."""
    experts: int = 1
    experts_per_token: int = 1
    shared_intermediate_size: int = 0
    """Width of the expert that every row passes, beside those that it chooses."""
    dtype_bytes: int = 2
    """Bytes of a number in embeddings, activations and KV."""
    attends: tuple[bool, ...] = ()
    """Whether each layer keeps keys and values; empty: all do."""
    recurs: tuple[bool, ...] = ()
    """Whether each layer keeps a state; empty: none does."""
    state: StateSize = NO_STATE
    """Size of one request's state in a layer that keeps one."""
    windows: Windows = NO_WINDOWS
    """Layers that keep a window of a request only."""
    weights: WeightBits = PLAIN
    """Bits of the weights of the MLP, or of experts."""
    attention_weights: WeightBits = PLAIN
    """Bits of the weights of attention: plain where only experts are quantized, as in MXFP4."""
    kv_dtype: KvDtype = "auto"
    together: Runs = ()
    """Layers that stay on one stage."""
    token_inputs: int = 0
    """Width of what each layer reads of the token itself, in a table of its own; 0: nothing. Then
    every stage has the embedding table, too."""
    token_vocabulary: int = 0
    """Rows of each layer's table of token inputs."""

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert of one layer; of a dense model, of the whole MLP."""
        return self.mlp_matrices * self.hidden_size * self.intermediate_size

    @property
    def dense_parameters(self) -> int:
        """Parameters of one layer that every row passes: attention, shared expert, router, and
        what works in what is read of the token."""
        inputs = TOKEN_MATRICES * self.hidden_size * self.token_inputs
        shared = self.shared_parameters + self.router_parameters
        return self.attention_parameters + shared + inputs

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
        own = self.layers * (self.layer_parameters + self.token_inputs * self.token_vocabulary)
        return own + tables * self.embedding_parameters

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
        table = self.token_inputs * self.token_vocabulary * element_bytes
        return round(self._dense_bytes_in(element_bytes) + experts) + table

    @property
    def table_bytes(self) -> int:
        """Bytes of the embedding table, and of the head's matrix."""
        return self.embedding_parameters * self.dtype_bytes

    @property
    def kv_token_bytes(self) -> int:
        """Bytes that each further token keeps in one layer: a mean over all of them."""
        return -(-sum(self.layer_kv_bytes) // self.layers)

    @property
    def layer_kv_bytes(self) -> tuple[int, ...]:
        """The same of each layer; none in those that keep a window only."""
        near = self._layers_of(self.windows.layers, False)
        each = zip(self._layers_of(self.attends, True), near, strict=True)
        return tuple(self._attending_kv_bytes * (keeps and not window) for keeps, window in each)

    @property
    def layer_state_bytes(self) -> tuple[int, ...]:
        """Bytes that each layer keeps of a request whatever its length: states, and windows."""
        state_bytes = self.state.bytes_in(self.dtype_bytes)
        window_bytes = self._attending_kv_bytes * self.windows.room_tokens
        recurs = self._layers_of(self.recurs, False)
        each = zip(recurs, self._layers_of(self.windows.layers, False), strict=True)
        return tuple(state_bytes * state + window_bytes * window for state, window in each)

    def kv_numbers(self, start: int, end: int) -> tuple[int, int]:
        """Numbers, and keys and values of heads, that one token takes in the layers [start,
        end)."""
        attending = sum(map(bool, self.layer_kv_bytes[start:end]))
        return attending * self.kv_values, attending * self.kv_vectors

    def state_numbers(self, start: int, end: int) -> StateSize:
        """Size of one request's states and windows in the layers [start, end)."""
        count, near = sum(self.recurs[start:end]), sum(self.windows.layers[start:end])
        kept = near * self.windows.room_tokens * self.kv_values
        return StateSize(count * self.state.recurrent, count * self.state.columns + kept)

    @property
    def row_flops(self) -> int:
        """Multiplications and additions of one row in one layer's matrices."""
        active = self.dense_parameters + self.experts_per_token * self.expert_parameters
        return 2 * active

    @property
    def row_bytes(self) -> int:
        """Bytes of one row between stages, with its token's id where layers read it."""
        return self.hidden_size * WIRE_BYTES_PER_VALUE + bool(self.token_inputs) * TOKEN_ID_BYTES

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
        return layers * self.layer_bytes + self.cost.ends_bytes(is_head, is_tail)

    @property
    def cost(self) -> ModelCost:
        """Costs of the model by its shape: all layers alike but for what they keep of a request."""
        table_bytes = self.token_inputs * self.token_vocabulary * self.dtype_bytes
        return ModelCost(
            layer_bytes=(self.layer_bytes,) * self.layers,
            kv_bytes=self.kv_token_bytes,
            layer_kv_bytes=self.layer_kv_bytes if self.attends or self.windows.layers else (),
            layer_state_bytes=(
                self.layer_state_bytes if self.recurs or self.windows.layers else ()
            ),
            row_bytes=self.row_bytes,
            head_bytes=self.table_bytes,
            tail_bytes=self.table_bytes,
            tied=self.tied_embeddings,
            layer_file_bytes=(self.layer_bytes - table_bytes,) * self.layers if table_bytes else (),
            together=self.together,
            embeds_everywhere=self.token_inputs > 0,
            each_file_bytes=self.layers * table_bytes,
        )

    @property
    def _attending_kv_bytes(self) -> int:
        return kv_bytes(self.kv_dtype, self.dtype_bytes, self.kv_values, self.kv_vectors)

    def _layers_of(self, kinds: tuple[bool, ...], default: bool) -> tuple[bool, ...]:
        return kinds or (default,) * self.layers

    def _dense_bytes_in(self, element_bytes: int) -> float:
        """Bytes of a layer without its experts; no router is quantized."""
        attention = self.attention_parameters * self.attention_weights.bytes_in(element_bytes)
        inputs = TOKEN_MATRICES * self.hidden_size * self.token_inputs
        shared = (self.shared_parameters + inputs) * self.weights.bytes_in(element_bytes)
        return attention + shared + self.router_parameters * element_bytes

    @property
    def shared_parameters(self) -> int:
        """Parameters of the expert that every row of a layer passes."""
        return self.mlp_matrices * self.hidden_size * self.shared_intermediate_size

    @property
    def router_parameters(self) -> int:
        """Parameters of what chooses the experts of a layer."""
        return self.hidden_size * self.experts if self.experts > 1 else 0


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model's shape, and what it takes of each node by its shape or its weight files."""

    name: str
    shape: ModelShape
    costs: Mapping[int, ModelCost]
    """Costs by the bytes of a number in the stages, see ELEMENT_BYTES."""
    measured: bool = False
    """Whether the sizes are those of weight files, not of shapes."""
    declared: DeclaredQuantization = PLAIN_WEIGHTS
    """How its checkpoint says that weights are quantized."""
    drafts: Mapping[int, DraftCost] = field(default_factory=dict)
    """Costs of its layer that drafts, by the bytes of a number; none: it has no such layer."""
    undrafted: str = ""
    """Why its layer that drafts cannot, as one clause; empty: it can, or there is none."""

    @property
    def drafting(self) -> "PlannedModel":
        """The same model in rings whose tails draft with its own layer; itself where it has
        none."""
        costs = {
            size: cost.with_drafts(self.drafts[size]) if size in self.drafts else cost
            for size, cost in self.costs.items()
        }
        return replace(self, costs=costs)

    @classmethod
    def of_shape(cls, shape: ModelShape) -> "PlannedModel":
        """Plan a model of which only the config is known."""
        costs = {size: replace(shape, dtype_bytes=size).cost for size in ELEMENT_BYTES}
        return cls(shape.name, shape, costs)

    @property
    def cost(self) -> ModelCost:
        """Costs in stages that compute in the format of the checkpoint's own numbers."""
        return self.costs[4 if self.shape.dtype_bytes == 4 else 2]
