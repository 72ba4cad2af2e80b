"""What a placement is computed from: a model's costs, what each node lends, the links, the goal.

Nodes say these numbers of themselves, and a node may lie. So whatever is built here lies within
what a PC or a link can be: no rate is zero, no time infinite, nothing is NaN, and the arithmetic
that follows needs no checks of its own. A number that is none counts as the worst there is.

Seconds, bytes and bytes per second throughout. Pure.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from molink_scheduler.link.facts import RATE_FLOOR_BYTES_PER_S, RATE_MAX_BYTES_PER_S

__all__ = ["Goal", "LinkFacts", "ModelCost", "Network", "NodeFacts"]

TIME_MAX_S = 3600.0
"""Longest step or trip: as long as messages of the control plane allow."""

MEMORY_MAX_BYTES = 2**50
"""A pebibyte, beyond every PC; sums of such numbers are still exact."""

ROWS_PER_S_MAX = 1e9
"""No device computes a row in less than a nanosecond."""

KV_TOKENS_MAX = 131_072
"""No stage offers more (`molink.engine.device.devices`), whatever its memory."""

STATE_SLOTS_MAX = 256
"""Nor room for the states of more requests."""

SCALES = (1 / 64, 64.0)
"""Of KV, states and tables: between 64 bits and one."""

OVERHEADS = ("step_fixed_s", "head_row_s", "head_fixed_s")


def _between(value: float, low: float, high: float, worst: float) -> float:
    """The nearest number from `low` to `high`; `worst` for what is no number."""
    return worst if math.isnan(value) else min(max(value, low), high)


def _seconds(value: float) -> float:
    return _between(value, 0.0, TIME_MAX_S, worst=TIME_MAX_S)


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Bytes and work of a model, layer by layer."""

    layer_bytes: tuple[int, ...]
    """Weights of each layer, as they are loaded; experts included."""
    kv_bytes: int
    """Keys and values of one token in one layer; where layers differ, a mean."""
    row_bytes: int
    """One row of activations on the wire."""
    head_bytes: int = 0
    """What the first stage has beside its layers: the embedding table."""
    tail_bytes: int = 0
    """What the last stage has beside its layers: the output matrix, norms."""
    tied: bool = False
    """The output matrix is the embedding table: a node that is head and tail has it once."""
    layer_work: tuple[float, ...] = ()
    """What a row takes in each layer, in that of the layer which nodes measure; empty: as much in
    all. It differs where some layers have experts and others none."""

    layer_file_bytes: tuple[int, ...] = ()
    """Weights of each layer as they are fetched; empty: as in memory. Quantized ones differ."""
    head_file_bytes: int | None = None
    """The embedding table as it is fetched; None: as in memory."""
    tail_file_bytes: int | None = None
    """The same of what the last stage has beside its layers."""
    together: tuple[tuple[int, int], ...] = ()
    """Runs [start, end) of layers that stay on one stage, because later ones read the KV of earlier
    ones; in order, and apart."""
    embeds_everywhere: bool = False
    """Every stage has the embedding table, because each layer reads what it makes of the tokens."""
    each_file_bytes: int = 0
    """What every stage fetches whole, of which it holds its layers' part: tables with columns for
    all layers."""
    layer_kv_bytes: tuple[int, ...] = ()
    """Keys and values of one token in each layer; empty: in all alike."""
    layer_state_bytes: tuple[int, ...] = ()
    """What each layer keeps of a request, whatever its length; empty: nothing."""

    def __post_init__(self) -> None:
        if not self.layer_bytes or min(*self.layer_bytes, self.row_bytes) < 1:
            raise ValueError("a model has layers, and bytes in each and in a row")
        if self.kv_bytes < (0 if self.layer_state_bytes else 1):
            raise ValueError("a model keeps KV of a token, or a state of a request")
        if min(self.head_bytes, self.tail_bytes) < 0:
            raise ValueError("tables have no less than 0 bytes")
        if self.layer_work and len(self.layer_work) != len(self.layer_bytes):
            raise ValueError("layer_work has a number for each layer, or none at all")
        if self.layer_file_bytes and len(self.layer_file_bytes) != len(self.layer_bytes):
            raise ValueError("layer_file_bytes has a number for each layer, or none at all")
        for each in (self.layer_kv_bytes, self.layer_state_bytes):
            if each and (len(each) != len(self.layer_bytes) or min(each) < 0):
                raise ValueError("KV and states have bytes for each layer, or none at all")
        if not all(0 < work < 1e3 for work in self.layer_work):
            raise ValueError("a layer's work is above 0, and below 1,000 measured layers")
        bounds = [0, *(bound for run in self.together for bound in run), self.layers]
        if bounds != sorted(bounds) or any(end - start < 2 for start, end in self.together):
            raise ValueError("runs of layers that stay together are of two or more, in order")
        if self.each_file_bytes < 0:
            raise ValueError("tables have no less than 0 bytes")

    @property
    def layers(self) -> int:
        """Number of the model's layers."""
        return len(self.layer_bytes)

    @property
    def uniform(self) -> bool:
        """Whether all layers cost the same."""
        sizes = (self.layer_bytes, self.layer_kv_bytes, self.layer_state_bytes)
        alike = all(len(set(one)) <= 1 for one in sizes) and set(self.layer_work) <= {1.0}
        return alike and not self.together

    @property
    def may_end(self) -> tuple[bool, ...]:
        """For each number of layers from 0 to all: whether a stage may end behind so many."""
        parted = {n for start, end in self.together for n in range(start + 1, end)}
        return tuple(n not in parted for n in range(self.layers + 1))

    @property
    def stages_max(self) -> int:
        """Most stages that the model can be cut into."""
        return sum(self.may_end[1:])

    @property
    def kept_of_token(self) -> tuple[int, ...]:
        """Bytes of KV of one token, layer by layer."""
        return self.layer_kv_bytes or (self.kv_bytes,) * self.layers

    @property
    def kept_of_request(self) -> tuple[int, ...]:
        """Bytes of one request's states, layer by layer."""
        return self.layer_state_bytes or (0,) * self.layers

    def ends_bytes(self, is_head: bool, is_tail: bool) -> int:
        """Weights of a stage beside its layers."""
        return self._ends(self.head_bytes, self.tail_bytes, is_head, is_tail)

    def _ends(self, head: int, tail: int, is_head: bool, is_tail: bool) -> int:
        embeds = is_head or self.embeds_everywhere
        if embeds and is_tail and self.tied:
            return max(head, tail)
        return head * embeds + tail * is_tail

    def stage_bytes(self, start: int, end: int, tables_scale: float = 1.0) -> int:
        """Weights of the stage with layers [start, end), on a node with this scale of tables."""
        ends = self.ends_bytes(start == 0, end == self.layers)
        return sum(self.layer_bytes[start:end]) + round(ends * tables_scale)

    @property
    def fetched_layers(self) -> tuple[int, ...]:
        """Bytes of each layer as it is fetched."""
        return self.layer_file_bytes or self.layer_bytes

    def fetched_bytes(self, start: int, end: int) -> int:
        """What a node downloads for the stage with layers [start, end)."""
        head = self.head_bytes if self.head_file_bytes is None else self.head_file_bytes
        tail = self.tail_bytes if self.tail_file_bytes is None else self.tail_file_bytes
        ends = self._ends(head, tail, start == 0, end == self.layers)
        return sum(self.fetched_layers[start:end]) + ends + self.each_file_bytes


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Memory that a PC lends, its step times and its upload."""

    id: str
    memory_bytes: int
    """For weights and KV; what activations and its owner need is taken off already."""
    decode_fixed_s: float
    """A layer's decode step, whatever the rows: its weights are read."""
    decode_row_s: float
    """A layer's decode step, for each row."""
    prefill_row_s: float
    """A layer, for each row of a prompt."""
    step_fixed_s: float = 0.0
    """A stage's step, however many layers it has: start, software of the hop."""
    head_row_s: float = 0.0
    """Output matrix and sampling of one row, on the tail."""
    head_fixed_s: float = 0.0
    """Output matrix whatever the rows, on the tail; 0 where `head_row_s` has it."""
    upload_bytes_per_s: float = RATE_MAX_BYTES_PER_S
    """Measured rate or the owner's cap, whichever is less."""
    download_bytes_per_s: float = 0.0
    """At which it fetches weights; 0: unknown."""
    kv_scale: float = 1.0
    """What KV takes of `memory_bytes`, in the model's bytes. That memory counts in layers: where a
    node's numbers are wider than the model's, KV and tables grow more than quantized layers."""
    tables_scale: float = 1.0
    """The same of the embedding table and the output matrix."""
    state_scale: float = 1.0
    """The same of states."""
    name: str = ""
    """Name for people; empty: the id."""
    pc: str = ""
    """Name of the PC whose devices several nodes are; empty: it has this one."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        memory = _between(self.memory_bytes, 0, MEMORY_MAX_BYTES, worst=0)
        put(self, "memory_bytes", int(memory))
        for key in ("decode_fixed_s", "decode_row_s", "prefill_row_s", *OVERHEADS):
            put(self, key, _seconds(getattr(self, key)))
        put(self, "decode_row_s", max(self.decode_row_s, 1 / ROWS_PER_S_MAX))
        put(self, "prefill_row_s", max(self.prefill_row_s, 1 / ROWS_PER_S_MAX))
        put(self, "upload_bytes_per_s", _rate(self.upload_bytes_per_s))
        download = _between(self.download_bytes_per_s, 0.0, RATE_MAX_BYTES_PER_S, worst=0.0)
        put(self, "download_bytes_per_s", download)
        for key in ("kv_scale", "tables_scale", "state_scale"):
            put(self, key, _between(getattr(self, key), *SCALES, worst=SCALES[1]))
        put(self, "name", self.name or self.id)
        put(self, "pc", self.pc or self.id)


def _rate(value: float) -> float:
    floor = RATE_FLOOR_BYTES_PER_S
    return _between(value, floor, RATE_MAX_BYTES_PER_S, worst=floor)


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """Rate and delay from one node to another."""

    rate_bytes_per_s: float
    one_way_s: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate_bytes_per_s", _rate(self.rate_bytes_per_s))
        object.__setattr__(self, "one_way_s", _seconds(self.one_way_s))


UNMEASURED = LinkFacts(RATE_MAX_BYTES_PER_S, 0.015)
"""Between two homes that have not met: their uploads bound the rate, 30 ms there and back."""

WITHIN_PC = LinkFacts(RATE_MAX_BYTES_PER_S, 0.0001)
"""Between two devices of a PC that have not been measured: loopback answers in 0.1 to 0.2 ms."""


@dataclass(frozen=True, slots=True)
class Network:
    """Links between ordered pairs of nodes, measured or assumed."""

    links: Mapping[tuple[str, str], LinkFacts] = field(default_factory=dict)
    default: LinkFacts = UNMEASURED

    def link(self, sender: NodeFacts, receiver: NodeFacts) -> LinkFacts:
        """The link from one to the other, the sender's upload cap included where it leads out of
        the PC."""
        if sender.pc == receiver.pc:
            return self.links.get((sender.id, receiver.id), WITHIN_PC)
        return _capped(self.links.get((sender.id, receiver.id), self.default), sender)

    def usual(self, sender: NodeFacts) -> LinkFacts:
        """The link out of the PC to a node that was not measured."""
        return _capped(self.default, sender)


def _capped(link: LinkFacts, sender: NodeFacts) -> LinkFacts:
    return LinkFacts(min(link.rate_bytes_per_s, sender.upload_bytes_per_s), link.one_way_s)


@dataclass(frozen=True, slots=True)
class Goal:
    """Bound on the time per token, and the request that is planned for."""

    tpot_s: float = 0.25
    """Most between two tokens of an answer: three words a second, about as fast as people read."""
    context_tokens: int = 2048
    """KV that a user keeps, prompt and answer."""
    prompt_tokens: int = 768
    """Prompt of a typical request."""
    answer_tokens: int = 256
    """Together about the mix of Azure's conversation trace as the benchmarks cut it: 763 in, 232
    out (`molink.workload.trace`)."""
    kv_tokens_max: int = KV_TOKENS_MAX
    micro_batches: int | None = None
    """Number that the head is to keep; None: it takes as many as make a cycle shortest."""

    def __post_init__(self) -> None:
        counts = (
            *(self.context_tokens, self.answer_tokens, self.kv_tokens_max),
            1 if self.micro_batches is None else self.micro_batches,
        )
        if not 0 < self.tpot_s < math.inf or min(counts) < 1 or self.prompt_tokens < 0:
            raise ValueError("a goal has a time and numbers of tokens above 0")
        if self.context_tokens > self.kv_tokens_max:
            raise ValueError(f"one user keeps {self.kv_tokens_max} tokens at most")

    @property
    def prompt_rows_per_token(self) -> float:
        """Rows of prompts that come with each token of an answer."""
        return self.prompt_tokens / self.answer_tokens

    @property
    def users_max(self) -> int:
        """Most users of one ring, for the KV that a stage offers at most."""
        return self.kv_tokens_max // self.context_tokens
