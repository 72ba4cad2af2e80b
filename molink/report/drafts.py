"""Drafters of a ring as `GET /cluster` tells of them, and their metrics."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from molink.report.capability import Family, RingCapability


@dataclass(frozen=True, slots=True)
class DrafterReport:
    """Figures of one drafter of a ring, since the ring was begun or mended."""

    name: str
    """copy, the name of a model, tail (a layer of the checkpoint) or grammar (what a request's
    grammar allows alone)."""
    rounds: int
    """Rounds of requests for which it has guessed."""
    acceptance: float | None
    """Share of its guesses that came true, of those that followed right ones; None: none did."""
    width: float
    """Tokens that it has guessed in a round, as a mean."""
    tokens_per_round: float
    """Tokens that came of such a round; 1 without guesses."""


def draft_families(of_rings: Sequence[Sequence[DrafterReport]]) -> Iterator[Family]:
    """Metrics of drafters, of each the ring's that it has guessed most for."""
    drafters = (one for drafters in of_rings for one in drafters)
    most = {one.name: one for one in sorted(drafters, key=lambda one: one.rounds)}
    for field, words in (
        ("acceptance", "Share of drafts that came true."),
        ("width", "Drafts of a round."),
        ("tokens_per_round", "Tokens of a round."),
    ):
        values = {one: getattr(drafter, field) or 0.0 for one, drafter in most.items()}
        yield f"molink_draft_{field}", words, "drafter", values


DRAFTS = RingCapability("drafters", draft_families)
