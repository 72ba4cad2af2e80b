"""Cells, and what stages have borrowed, as `GET /cell` and `GET /cluster` tell of them."""

from dataclasses import dataclass

from molink.report.capability import StageCapability
from molink.report.figures import seconds, thousands


@dataclass(frozen=True, slots=True)
class StageLenderReport:
    """Places of the KV of a stage that has a lender, or had one."""

    own_tokens: int
    """Tokens that its own device holds."""
    borrowed_tokens: int
    """Tokens for which it has room at its lender, as far as its ring counts with them."""
    held_tokens: int
    """Tokens in blocks that lie there now, cached ones among them."""
    step_wait_s: float
    """Smoothed time for which a decode step over some of them waits; 0: there was none yet."""
    lender: str = ""
    """Id of the PC whose main memory that is, or, with a card behind it ("ID/cuda:1"), of the
    card's; empty: main memory of its own PC, or of nobody now."""


@dataclass(frozen=True, slots=True)
class CellPairReport:
    """Two PCs that may lend to each other, or could."""

    pcs: tuple[str, ...]
    """Their ids."""
    names: tuple[str, ...]
    confirmed: bool
    """Whether the operator has confirmed them; before that nothing is lent."""
    rtt_ms: float | None
    """Round trip between them as it was measured when they joined; None: it was not."""
    echo_ms: float | None
    """Milliseconds within which nearly all echoes came, the slower way; None: not measured."""
    near: bool
    """Whether one of them may lend to the other by their echoes."""
    reason: str
    """Why nothing is lent; empty: it may be."""


@dataclass(frozen=True, slots=True)
class CellPcReport:
    """PC of a cell, or one that could be in one, by bytes of KV; its card that lends is another
    one, with its name behind the PC's."""

    id: str
    name: str
    own_bytes: int
    """Room of its own stages on their devices."""
    lent_bytes: int
    """Memory that stages may have here: main memory those of other PCs, a card's all."""
    held_bytes: int
    """What lies of that here."""
    borrowed_bytes: int
    """Room of its own stages on other PCs, and on its own card."""
    lendable_bytes: int
    """Memory that its owner lends now, what is lent counted."""
    reason: str
    """Why it is less than the owner has set; empty: it is not."""


@dataclass(frozen=True, slots=True)
class CellReport:
    """Pairs and PCs of all cells of a cluster, with those that could be."""

    pairs: tuple[CellPairReport, ...]
    pcs: tuple[CellPcReport, ...]


def lender_text(lender: StageLenderReport) -> str:
    """Tokens that a stage holds itself and has borrowed room for, and how long its steps wait for
    what lies there."""
    borrowed = f"{lender.borrowed_tokens:,} borrowed, {lender.held_tokens:,} of them held"
    wait = f", a step waits {seconds(lender.step_wait_s)}" if lender.step_wait_s else ""
    device = lender.lender.partition("/")[2]
    where = f" on a card ({device})" if device else ""
    return f"{lender.own_tokens:,} tokens of its own, {borrowed}{where}{wait}"


def borrowed_note(lender: StageLenderReport) -> str:
    """Room that a stage has borrowed, in two words; empty: none."""
    return f"{thousands(lender.borrowed_tokens)} borrowed" if lender.borrowed_tokens else ""


LENDERS = StageCapability("lender", "lender", lender_text, borrowed_note)
