"""The units that travel: spans, and the batches that carry them around the ring.

A *span* is a run of consecutive tokens of one request. A *decode batch* is one micro-batch: a span
of one known token for each of its requests, and maybe drafts behind it. A *prefill batch* holds
longer spans, possibly of several requests. Both are the same value and run through the same code,
because prefill, decode, recomputation after preemption and replay after a failure are one thing:
tokens computed catch up with tokens known. Drafts that were wrong are tokens computed that are not
known: the request's next span begins before them, and nobody is told otherwise.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.changes import Runs, check_runs, numbers_of
from molink_scheduler.prompt_cut import PromptCut
from molink_scheduler.request import SamplingParams
from molink_scheduler.timing.round_tracker import StageStamp

__all__ = [
    "ADMITTED_BULK_BYTES_MAX",
    "DECODE",
    "DRAFTS_MAX",
    "MICRO_BATCH_COUNT_MAX",
    "PREFILL",
    "Admission",
    "Batch",
    "BatchClass",
    "KeptState",
    "Refusal",
    "Release",
    "RowFault",
    "Span",
    "bulk_bytes",
]

ADMITTED_BULK_BYTES_MAX = 2**20
"""Bytes of grammars and logit biases in one batch, unless a single request has more: a quarter of
what a message's header may hold."""

MICRO_BATCH_COUNT_MAX = 64
"""Most micro-batches: twice the longest ring that we expect; more would be nearly empty."""

DRAFTS_MAX = 16
"""Most drafts of one span: text that is copied is right about as often, and 17 rows of a wide model
are still one message."""


class BatchClass(IntEnum):
    """Queue that a batch waits in, at a stage's device and on its link."""

    DECODE = 0
    PREFILL = 1


DECODE: Final = BatchClass.DECODE
PREFILL: Final = BatchClass.PREFILL
"""Class of a prefill batch as a name of the module, for code that asks it of every batch: Python
3.11 takes five times as long to look up a member of an enum."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, end) of one request, numbered from the first token of its prompt."""

    request_id: int
    start: int
    end: int
    samples: bool
    """True when the span has the last token known, so that its logits yield the next one."""
    drafts: tuple[int, ...] = ()
    """Its last tokens, where they are drafts: guesses of what comes behind those that are known."""
    wants: int = 0
    """Most drafts that the tail is to send home, of what comes behind the token that it draws."""

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"a span holds at least one token, got [{self.start}, {self.end})")
        if self.drafts and (objection := self._drafts_objection()):
            raise ValueError(objection)
        if self.wants and not 0 < self.wants <= DRAFTS_MAX * self.samples:
            raise ValueError(f"a span that samples may want {DRAFTS_MAX} drafts, got {self.wants}")

    def _drafts_objection(self) -> str:
        if not self.samples:
            return "drafts are verified in a span that samples"
        if len(self.drafts) > DRAFTS_MAX:
            return f"a span has at most {DRAFTS_MAX} drafts, got {len(self.drafts)}"
        if len(self.drafts) >= self.end - self.start:
            return "drafts follow a token of the span that is known"
        return "a draft is the id of a token, from 0 on" if min(self.drafts) < 0 else ""

    @property
    def known_end(self) -> int:
        """Position behind its last token that is known; drafts follow."""
        return self.end - len(self.drafts)

    @property
    def tokens(self) -> int:
        """How many tokens the span holds."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Admission:
    """Facts of a request that stages need when its first span arrives; only the tail uses the
    sampling part."""

    request_id: int
    prompt_tokens: int
    tokens_expected: int
    """Most tokens the sequence may come to hold: where to place its KV so that it can stay in one
    piece."""
    sampling: SamplingParams
    prompt: tuple[int, ...] = ()
    """The prompt's token ids, only where the sampling needs them."""
    output: tuple[int, ...] = ()
    """Tokens generated before this admission (recomputation, replay)."""
    waited_s: float = 0.0
    """Seconds that the request had waited on the head, for information; nothing depends on it."""
    kept_tokens: int = 0
    """First tokens of which stages hold KV from the ring's epoch before."""
    cached: Runs = ()
    """Cached blocks to begin with, as runs (first number, blocks): their tokens are never sent."""
    snapshot: int | None = None
    """Snapshot of the states behind these blocks to go on with, where layers keep states."""

    def __post_init__(self) -> None:
        if self.cached:
            check_runs(self.cached)

    @property
    def cut(self) -> PromptCut:
        """Where its KV is cut."""
        return PromptCut.of(self.prompt_tokens, self.sampling.kv_budget)

    @property
    def begins(self) -> bool:
        """Whether it begins with what stages hold of others."""
        return bool(self.cached) or self.snapshot is not None

    @property
    def cached_numbers(self) -> Iterable[int]:
        """Numbers of its cached blocks, its first one first."""
        return numbers_of(self.cached)

    @property
    def cached_blocks(self) -> int:
        """How many of its first blocks are cached."""
        return sum([blocks for _, blocks in self.cached])

    @property
    def cached_tokens(self) -> int:
        """How many of its first tokens are in cached blocks."""
        return self.cached_blocks * BLOCK_TOKENS


def bulk_bytes(admissions: Iterable[Admission]) -> int:
    """Most bytes that the grammars and logit biases of some requests take in a message."""
    return sum(one.sampling.bulk_bytes for one in admissions)


@dataclass(frozen=True, slots=True)
class KeptState:
    """Order to copy a request's states once its span that ends here is computed."""

    request_id: int
    tokens: int
    """Tokens behind which these are its states: where one of the batch's spans is known to."""
    snapshot: int
    """Place that the copy goes to; what was there is gone."""

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.snapshot < 0:
            raise ValueError("states are kept behind a token, under a number from 0 on")


class RowFault(IntEnum):
    """Fault of a request's rows, for which a stage refuses them."""

    RECEIVED = 0
    """Rows came as numbers that are not finite: one of the pair that the link joins is at fault."""
    OVERFLOWN = 1
    """Rows have grown beyond the stage's number format, which is nobody's fault."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refusal of one request's rows. They are zeros from there on, and the request ends where the
    batch comes out; the rows of others are what they were."""

    request_id: int
    fault: RowFault


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's work for every stage of the ring, in the order in which rows stand in the
    tensor."""

    batch_id: int
    """Number that rises with every batch that the head plans."""
    batch_class: BatchClass
    micro_batch: int
    """Decode group of the batch; -1 for prefill."""
    spans: tuple[Span, ...]
    admissions: tuple[Admission, ...] = ()
    codec: str = "raw"
    """Codec of the batch's activations between stages."""
    stamps: tuple[StageStamp, ...] = ()
    """Stamps of the stages that have computed a decode batch so far, one from each."""
    replay: bool = False
    """Whether its rows only rebuild KV that a replaced stage lacks, see `resume`."""
    snapshots: tuple[KeptState, ...] = ()
    """States to keep once it is computed, at most one of each request."""
    refused: tuple[Refusal, ...] = ()
    """Requests of the batch whose rows a stage has refused on the way."""
    tokens: int = field(init=False, repr=False, compare=False)
    """Rows of the batch's tensor: asked for at every hand, so counted once."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", sum([span.end - span.start for span in self.spans]))
        if self.refused:
            refused = {one.request_id for one in self.refused}
            own = {span.request_id for span in self.spans}
            if len(refused) < len(self.refused) or not refused <= own:
                raise ValueError("a batch refuses requests of its own, each once")

    def stamped(self, stamp: StageStamp) -> "Batch":
        """Batch as it is once one more stage has computed it."""
        return Batch(
            self.batch_id,
            self.batch_class,
            self.micro_batch,
            self.spans,
            self.admissions,
            self.codec,
            (*self.stamps, stamp),
            self.replay,
            self.snapshots,
            self.refused,
        )

    def refusing(self, refused: Iterable[Refusal]) -> "Batch":
        """Batch with these refusals, unless a request was refused before."""
        by_request = {one.request_id: one for one in (*refused, *self.refused)}
        return replace(self, refused=tuple(by_request.values()))


@dataclass(frozen=True, slots=True)
class Release:
    """Tells every stage to forget a request's KV; sent in the decode class, ahead of what is
    planned after it."""

    request_id: int
