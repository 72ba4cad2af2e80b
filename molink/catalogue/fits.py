"""Fits of the catalogue's models on given PCs, as `molink plan` places them, in the best format.

The best format is the most exact one in which eight users find room and a user alone reads as the
answer comes. Where there is none, it is the one in which a user alone is fastest.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from molink.checkpoint.catalogue.entries import CatalogueEntry, Format
from molink.checkpoint.model_shape import PlannedModel
from molink_scheduler.placement import Goal, Network, NodeFacts, Plan, Shortage, loaded_rings
from molink_scheduler.placement.question import PlacementQuestion

USERS = 8
"""The other number of users that a speed is told for, beside one."""

READING_TOKENS_PER_S = 4.0
"""About as fast as people read: the usual goal of a plan, a token each 250 ms."""

Facts = Callable[[PlannedModel], tuple[Sequence[NodeFacts], Network]]
"""The PCs and their links, as a plan of this model counts with them."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A model in one format on the PCs."""

    form: Format
    tokens_per_s_alone: float
    """Tokens per second of a user alone."""
    tokens_per_s_each: float | None
    """Tokens per second of each of eight users at once; None: their KV finds no room."""
    ttft_s: float
    """Seconds until the first token, of a user alone with a prompt of the goal."""
    users: int
    """Users at once within the goal's bound on the time per token."""
    pcs: int
    """PCs that hold a part, of all rings."""
    fetched_bytes: int
    """Weights that these download, together."""
    fetch_s: float | None
    """Seconds of the longest of these downloads; None: no rate is known."""

    @property
    def is_readable(self) -> bool:
        """Whether a user alone reads as the answer comes."""
        return self.tokens_per_s_alone >= READING_TOKENS_PER_S


@dataclass(frozen=True, slots=True)
class CatalogueRow:
    """A model of the catalogue, and what it would be on the PCs."""

    entry: CatalogueEntry
    fit: Fit | None
    """None: it fits in no format, or is refused."""
    why: str = ""
    """Why it does not fit, one sentence; empty: it does."""


def catalogue_rows(entries: Iterable[CatalogueEntry], facts: Facts) -> list[CatalogueRow]:
    """Rows of the models, the most useful first: the largest that people can read along, then those
    that are slower, then those that do not fit."""
    rows = [_row(entry, facts) for entry in entries]
    return sorted(rows, key=_usefulness, reverse=True)


def _usefulness(row: CatalogueRow) -> tuple[int, int, str]:
    rank = 0 if row.fit is None else 1 + row.fit.is_readable
    return rank, row.entry.parameters, row.entry.released


def _row(entry: CatalogueEntry, facts: Facts) -> CatalogueRow:
    if entry.refused:
        return CatalogueRow(entry, None, entry.refused)
    best, why = None, ""
    for form in entry.formats:
        found = fit_of(entry, form, facts)
        if isinstance(found, Shortage):
            why = found.sentence
        elif found.tokens_per_s_each is not None and found.is_readable:
            return CatalogueRow(entry, found)
        elif best is None or found.tokens_per_s_alone > best.tokens_per_s_alone:
            best = found
    return CatalogueRow(entry, best, why if best is None else "")


def fit_of(entry: CatalogueEntry, form: Format, facts: Facts) -> Fit | Shortage:
    """A model in a format on the PCs, or what is missing."""
    planned = entry.planned(form)
    nodes, network = facts(planned)
    plan = PlacementQuestion.of(planned.cost, nodes, network, Goal()).answer()
    if isinstance(plan, Shortage):
        return plan
    together = loaded_rings(plan, planned.cost, nodes, network, USERS)
    return _fit(form, plan, together and sum(ring.tokens_per_s for ring in together) / USERS)


def _fit(form: Format, plan: Plan, tokens_per_s_each: float | None) -> Fit:
    fastest = min(plan.rings, key=lambda ring: ring.tpot_alone_s)
    stages = [stage for ring in plan.rings for stage in ring.stages]
    times = [stage.fetch_s for stage in stages if stage.fetch_s is not None]
    return Fit(
        form=form,
        tokens_per_s_alone=1 / fastest.tpot_alone_s,
        tokens_per_s_each=tokens_per_s_each,
        ttft_s=fastest.ttft_s,
        users=plan.users,
        pcs=len(stages),
        fetched_bytes=sum(stage.fetched_bytes for stage in stages),
        fetch_s=max(times, default=None),
    )
