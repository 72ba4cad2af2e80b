"""Facts that a placement is computed from: what each node lends, the links, the goal.

Nodes say these numbers of themselves, and a node may lie. So whatever is built here lies within
what a PC or a link can be: no rate is zero, no time infinite, nothing is NaN, and the arithmetic
that follows needs no checks of its own. A number that is none counts as the worst there is.

Seconds, bytes and bytes per second throughout. Pure.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from molink_scheduler.link.facts import RATE_FLOOR_BYTES_PER_S, RATE_MAX_BYTES_PER_S

TIME_MAX_S = 3600.0
"""Longest step or trip: as long as messages of the control plane allow."""

MEMORY_MAX_BYTES = 2**50
"""A pebibyte, beyond every PC; sums of such numbers are still exact."""

ROWS_PER_S_MAX = 1e9
"""Most rows per second: no device computes a row in less than a nanosecond."""

KV_TOKENS_MAX = 131_072
"""Most tokens that a stage offers (`molink.engine.device.devices`), whatever its memory."""

STATE_SLOTS_MAX = 256
"""Nor room for the states of more requests."""

SCALES = (1 / 64, 64.0)
"""Bounds of the scales of KV, states and tables: between 64 bits and one."""

OVERHEADS = ("step_fixed_s", "head_row_s", "head_fixed_s")


def _clamped(value: float, low: float, high: float, worst: float) -> float:
    """The nearest number from `low` to `high`; `worst` for what is no number."""
    return worst if math.isnan(value) else min(max(value, low), high)


def _seconds(value: float) -> float:
    return _clamped(value, 0.0, TIME_MAX_S, worst=TIME_MAX_S)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Memory that a PC lends, its step times and its upload."""

    id: str
    memory_bytes: int
    """Memory for weights and KV; what activations and its owner need is taken off already."""
    decode_fixed_s: float
    """Seconds of a layer's decode step, whatever the rows: its weights are read."""
    decode_row_s: float
    """Seconds of a layer's decode step for each row."""
    prefill_row_s: float
    """Seconds of a layer for each row of a prompt."""
    step_fixed_s: float = 0.0
    """Seconds of a stage's step beside its layers: start, software of the hop."""
    head_row_s: float = 0.0
    """Seconds of output matrix and sampling for one row, on the tail."""
    head_fixed_s: float = 0.0
    """Output matrix whatever the rows, on the tail; 0 where `head_row_s` has it."""
    upload_bytes_per_s: float = RATE_MAX_BYTES_PER_S
    """Measured rate or the owner's cap, whichever is less."""
    download_bytes_per_s: float = 0.0
    """Rate at which it fetches weights; 0: unknown."""
    kv_scale: float = 1.0
    """Bytes of `memory_bytes` that KV takes for each of the model's bytes. That memory counts in
    layers: where a node's numbers are wider than the model's, KV and tables grow more than
    quantized layers."""
    tables_scale: float = 1.0
    """Scale, like that of KV, of the embedding table and the output matrix."""
    state_scale: float = 1.0
    """Scale, like that of KV, of states."""
    name: str = ""
    """Name for people; empty: the id."""
    pc: str = ""
    """Name of the PC whose devices several nodes are; empty: it has this one."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        memory = _clamped(self.memory_bytes, 0, MEMORY_MAX_BYTES, worst=0)
        put(self, "memory_bytes", int(memory))
        for key in ("decode_fixed_s", "decode_row_s", "prefill_row_s", *OVERHEADS):
            put(self, key, _seconds(getattr(self, key)))
        put(self, "decode_row_s", max(self.decode_row_s, 1 / ROWS_PER_S_MAX))
        put(self, "prefill_row_s", max(self.prefill_row_s, 1 / ROWS_PER_S_MAX))
        put(self, "upload_bytes_per_s", _rate(self.upload_bytes_per_s))
        download = _clamped(self.download_bytes_per_s, 0.0, RATE_MAX_BYTES_PER_S, worst=0.0)
        put(self, "download_bytes_per_s", download)
        for key in ("kv_scale", "tables_scale", "state_scale"):
            put(self, key, _clamped(getattr(self, key), *SCALES, worst=SCALES[1]))
        put(self, "name", self.name or self.id)
        put(self, "pc", self.pc or self.id)


def _rate(value: float) -> float:
    floor = RATE_FLOOR_BYTES_PER_S
    return _clamped(value, floor, RATE_MAX_BYTES_PER_S, worst=floor)


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """Rate and delay from one node to another."""

    rate_bytes_per_s: float
    one_way_s: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate_bytes_per_s", _rate(self.rate_bytes_per_s))
        object.__setattr__(self, "one_way_s", _seconds(self.one_way_s))


UNMEASURED = LinkFacts(RATE_MAX_BYTES_PER_S, 0.015)
"""Link between two homes that have not met: their uploads bound the rate, 30 ms there and back."""

WITHIN_PC = LinkFacts(RATE_MAX_BYTES_PER_S, 0.0001)
"""Link between devices of a PC, not measured: loopback answers in 0.1 to 0.2 ms."""


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
