"""Comparison of two rings that compute the same, and the search for the node that is wrong.

Both rings compute the same tokens as a prompt. Each stage reports a *sketch* of its rows before its
first layer and behind each of its layers: a few numbers whose distance is about that of the rows
(`molink.engine.model.row_sketches`). Walked up from the first layer, the first place where two
reports differ names the pair that contradicts itself: those who computed the layer below, one in
each ring; or, where only what was sent and what was received differ, the two ends of that link.

One disagreement cannot tell which of both it is. A node is found out when it has failed two audits,
has contradicted two others, and more than any of those has: an honest one that met a liar is never
the one, as long as liars do not tell the same story.

A stage of which everything is heard but its sketch needs no second one: once may be chance, from
the second time on its silence weighs as much as a failed audit.

Pure: times are arguments.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

NUMBERS = 4
"""Numbers of a sketch at one place. A difference ten times the tolerance stays below it once in
3,000 sketches, one of three times in 50; four more numbers would double a report."""

FAILURES_MAX = 2
"""Audits that a node fails, and others whom it contradicts, before it is found out."""

CALM_S = 24 * 3600.0
"""Seconds after which a contradiction is forgotten."""


@dataclass(frozen=True, slots=True)
class AuditedStage:
    """Report of one stage of a ring on the audited tokens."""

    node_id: str
    pc: str
    name: str
    layers: tuple[int, int]
    """Layers [start, end) of the stage."""
    numbers: tuple[float, ...]
    """Sketches: `NUMBERS` numbers before its first layer, and behind each layer."""

    @property
    def is_whole(self) -> bool:
        """Whether it has reported all of its layers."""
        start, end = self.layers
        return len(self.numbers) == (end - start + 1) * NUMBERS

    def at(self, boundary: int) -> tuple[float, ...]:
        """Sketch of the rows that have passed so many layers of the model."""
        first = (boundary - self.layers[0]) * NUMBERS
        return self.numbers[first : first + NUMBERS]


@dataclass(frozen=True, slots=True)
class AuditedRing:
    """Report of a ring on the audited tokens, its head first."""

    ring: int
    tokens: int
    stages: tuple[AuditedStage, ...]
    logprobs: tuple[float, ...]
    """Log-probabilities of the tokens behind the first one, as its tail computed them."""
    dtype: str
    """The coarsest of its stages."""
    codec: str
    kv_dtype: str = "auto"
    has_experts: bool = False
    """Whether its rows choose experts."""

    def holder(self, layer: int) -> AuditedStage:
        """The stage that computes a layer."""
        return next(one for one in self.stages if one.layers[0] <= layer < one.layers[1])


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest distances between honest rings."""

    rows: float
    """Distance of two rows in lengths of a row: 0 is the same, 1.4 unrelated, 2 the opposite."""
    logprobs: float
    """Mean difference of the tokens' log-probabilities, in nats."""

    def __add__(self, other: "Tolerance") -> "Tolerance":
        return Tolerance(self.rows + other.rows, self.logprobs + other.logprobs)


MARGIN = 5.0
"""Multiple of what was measured on a model of 9 layers (docs/benchmarks/reliability.md): deeper
models and other devices are further apart. A layer left out is 20 times as far as bfloat16."""

_OF_DTYPE = {
    "float32": Tolerance(2e-4, 2e-4),
    "float16": Tolerance(0.002, 0.004),
    "bfloat16": Tolerance(0.009, 0.035),
}
"""Worst distances that were measured, by dtype; of fp32 three times that, for a card's own sums."""

_OF_CODEC = {"int8": Tolerance(0.017, 0.026), "fp8": Tolerance(0.05, 0.12)}
"""Distances that a codec adds; raw and lossless rows arrive as they were sent."""

_OF_KV = {"int8": Tolerance(0.006, 0.016)}
"""Distances that KV in 8 bits adds; other KV is as fine as the rows."""

_OF_EXPERTS = Tolerance(0.05, 0.02)
"""Distances that experts add: where two suit a row alike, the last bits choose, and the row is
another. Tiny models of random weights, in which that is frequent, were up to 0.17 and 0.1 away."""

_NOTHING = Tolerance(0.0, 0.0)


def tolerance_of(ring: AuditedRing) -> Tolerance:
    """How far an honest ring may be from what its model computes exactly."""
    of_dtype = _OF_DTYPE.get(ring.dtype, _OF_DTYPE["bfloat16"])
    of_codec, of_kv = _OF_CODEC.get(ring.codec, _NOTHING), _OF_KV.get(ring.kv_dtype, _NOTHING)
    worst = of_dtype + of_codec + of_kv + (_OF_EXPERTS if ring.has_experts else _NOTHING)
    return Tolerance(MARGIN * worst.rows, MARGIN * worst.logprobs)


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Contradiction of two nodes."""

    one: AuditedStage
    other: AuditedStage
    what: str
    """Values that differ, as a clause: "the rows behind layer 5"."""
    distance: float
    tolerance: float

    @property
    def sentence(self) -> str:
        """The finding in a sentence for operators."""
        return (
            f"{self.one.name} and {self.other.name} contradict each other on {self.what}: they "
            f"differ by {self.distance:.2g}, {self.tolerance:.2g} is allowed"
        )


def distance(one: Sequence[float], other: Sequence[float], tokens: int) -> float:
    """About how far the rows of two sketches are apart, in lengths of a row."""
    squares = sum((a - b) ** 2 for a, b in zip(one, other, strict=True))
    found = math.sqrt(squares / (NUMBERS * tokens))
    return math.inf if math.isnan(found) else found


def disagreement(one: AuditedRing, other: AuditedRing) -> Disagreement | None:
    """The first contradiction of two rings that have reported the same tokens; None: they agree."""
    for boundary in range(one.stages[-1].layers[1] + 1):
        for a, b, what, allowed in _pairs(one, other, boundary):
            found = distance(a.at(boundary), b.at(boundary), one.tokens)
            if not found <= allowed:
                return Disagreement(a, b, what, found, allowed)
    found = _mean_difference(one.logprobs, other.logprobs)
    allowed = tolerance_of(one).logprobs + tolerance_of(other).logprobs
    if found <= allowed:
        return None
    tails = one.stages[-1], other.stages[-1]
    return Disagreement(*tails, "how likely the tokens are", found, allowed)


def _pairs(
    one: AuditedRing, other: AuditedRing, boundary: int
) -> Iterator[tuple[AuditedStage, AuditedStage, str, float]]:
    """Pairs of stages that must have reported the same at a place, and the tolerance: those that
    computed the rows, in both rings; then in each ring those that sent and received them."""
    apart = tolerance_of(one).rows + tolerance_of(other).rows
    if boundary == 0:
        yield one.stages[0], other.stages[0], "the rows of the tokens", apart
        return
    layer, behind = boundary - 1, f"the rows behind layer {boundary - 1}"
    yield one.holder(layer), other.holder(layer), behind, apart
    for ring in (one, other):
        sender = ring.holder(layer)
        if sender.layers[1] == boundary and sender is not ring.stages[-1]:
            allowed = 2 * tolerance_of(ring).rows
            yield sender, ring.holder(boundary), f"{behind}, sent and received", allowed


def _mean_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """Mean difference of log-probabilities; infinite where one of them is not a number."""
    differences = [abs(a - b) for a, b in zip(one, other, strict=True)]
    mean = sum(differences) / max(1, len(differences))
    return math.inf if math.isnan(mean) else mean


@dataclass(slots=True)
class _Record:
    """Audits and contradictions held against one node."""

    pc: str
    failed_at: list[float] = field(default_factory=list)
    """The audits that it has failed, the latest last."""
    contradicts: dict[str, float] = field(default_factory=dict)
    """The PCs that say otherwise, and when they did last."""
    silent_at: list[float] = field(default_factory=list)
    """The audits of which it has reported nothing; all but the first are failed ones, too."""


@dataclass(slots=True)
class Disagreements:
    """Record of who has contradicted whom."""

    _of: dict[str, _Record] = field(default_factory=dict)

    def add(self, findings: Sequence[Disagreement], now: float) -> list[str]:
        """Take in what one audit has shown; the ids of the nodes that are found out by it."""
        self._forget_old(now)
        for found in findings:
            for node, other in (found.one, found.other), (found.other, found.one):
                record = self._of.setdefault(node.node_id, _Record(node.pc))
                if record.failed_at[-1:] != [now]:
                    record.failed_at.append(now)
                if other.pc != node.pc:  # Nobody vouches for a device of his own.
                    record.contradicts[other.pc] = now
        return [one for one, record in self._of.items() if self._is_found_out(record)]

    def silent(self, stages: Sequence[AuditedStage], now: float) -> list[str]:
        """Take in whose sketches alone did not come, though their other reports did; the ids of
        the nodes that are found out by it."""
        self._forget_old(now)
        for stage in stages:
            record = self._of.setdefault(stage.node_id, _Record(stage.pc))
            if record.silent_at:
                record.failed_at.append(now)
            record.silent_at.append(now)
        return [one.node_id for one in stages if self._is_found_out(self._of[one.node_id])]

    def failures(self, node_id: str) -> int:
        """How many audits a node has failed."""
        return len(self._of[node_id].failed_at) if node_id in self._of else 0

    def forget(self, node_id: str) -> None:
        """Drop what is held against a node, and against others because of it."""
        record = self._of.pop(node_id, None)
        if record is None:
            return
        for other in self._of.values():
            if other.contradicts.pop(record.pc, None) is not None and not other.contradicts:
                other.failed_at = other.silent_at[1:]

    def _is_found_out(self, record: _Record) -> bool:
        own = len(record.contradicts) + max(0, len(record.silent_at) - 1)
        theirs = [len(one.contradicts) for one in self._of.values() if one.pc in record.contradicts]
        enough = min(own, len(record.failed_at)) >= FAILURES_MAX
        return enough and own > max(theirs, default=0)

    def _forget_old(self, now: float) -> None:
        for node_id, record in list(self._of.items()):
            record.failed_at = [at for at in record.failed_at if now - at <= CALM_S]
            record.silent_at = [at for at in record.silent_at if now - at <= CALM_S]
            late = [pc for pc, at in record.contradicts.items() if now - at > CALM_S]
            for pc in late:
                del record.contradicts[pc]
            if not record.failed_at and not record.silent_at:
                del self._of[node_id]
