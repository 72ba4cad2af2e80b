"""Fits of the catalogue's models on given PCs, as `molink plan` places them, in the best format.

The best format is the most exact one in which eight users find room and an answer comes to a user
alone twice as fast as people read. Where there is none, it is the one in which that user's comes
fastest.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from molink.checkpoint.catalogue.entries import CatalogueEntry, Format
from molink.checkpoint.model_shape import PlannedModel
from molink_scheduler.placement import (
    Goal,
    Network,
    NodeFacts,
    Plan,
    Shortage,
    tokens_per_s_together,
)
from molink_scheduler.placement.question import PlacementQuestion

USERS = 8
"""The other number of users that a speed is told for, beside one."""

READING_TOKENS_PER_S = 4.0
"""About as fast as people read: the usual goal of a plan, a token each 250 ms."""

FLUENT_TOKENS_PER_S = 2 * READING_TOKENS_PER_S
"""From here on a more exact format is worth more than a faster one."""

EFFORT_MAX = 20_000
"""Effort of each plan, a fifteenth of what a plan alone may take: a hundred are made. Up to seven
PCs all rings are tried for less."""

Facts = Callable[[PlannedModel], tuple[Sequence[NodeFacts], Network]]
"""The PCs and their links, as a plan of this model counts with them."""

Planned = tuple[PlacementQuestion, Plan | Shortage]
Plans = Callable[[CatalogueEntry, Format], Planned]
"""The plan of a model in a format, with what was asked."""


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


@dataclass(frozen=True, slots=True)
class CatalogueRow:
    """A model of the catalogue, and what it would be on the PCs."""

    entry: CatalogueEntry
    fit: Fit | None
    """None: it fits in no format, or is refused."""
    why: str = ""
    """Why it does not fit, one sentence; empty: it does."""


def question_of(entry: CatalogueEntry, form: Format, facts: Facts) -> PlacementQuestion:
    """What the placement is asked of a model in a format."""
    planned = entry.planned(form)
    question = PlacementQuestion.of(planned.cost, *facts(planned), Goal())
    return replace(question, effort_max=EFFORT_MAX)


def plans_here(facts: Facts) -> Plans:
    """Plans that are made when they are asked for."""

    def plan(entry: CatalogueEntry, form: Format) -> Planned:
        question = question_of(entry, form, facts)
        return question, question.answer()

    return plan


def catalogue_rows(entries: Iterable[CatalogueEntry], plans: Plans) -> list[CatalogueRow]:
    """Rows of the models, the most useful first: the largest that people can read along, then those
    that are slower, then those that do not fit."""
    rows = [_row(entry, plans) for entry in entries]
    return sorted(rows, key=_usefulness, reverse=True)


def _usefulness(row: CatalogueRow) -> tuple[int, int, str]:
    rank = 0 if row.fit is None else 1 + (row.fit.tokens_per_s_alone >= READING_TOKENS_PER_S)
    return rank, row.entry.parameters, row.entry.released


def _row(entry: CatalogueEntry, plans: Plans) -> CatalogueRow:
    if entry.refused:
        return CatalogueRow(entry, None, entry.refused)
    best, why = None, ""
    for form in entry.formats:
        question, plan = plans(entry, form)
        if isinstance(plan, Shortage):
            why = plan.sentence
            continue
        found = _fit(form, question, plan)
        if found.tokens_per_s_each is not None and found.tokens_per_s_alone >= FLUENT_TOKENS_PER_S:
            return CatalogueRow(entry, found)
        if best is None or found.tokens_per_s_alone > best.tokens_per_s_alone:
            best = found
    return CatalogueRow(entry, best, why if best is None else "")


def _fit(form: Format, question: PlacementQuestion, plan: Plan) -> Fit:
    asked = question.model, question.nodes, question.network
    all_per_s = tokens_per_s_together(plan, *asked, USERS)
    fastest = min(plan.rings, key=lambda ring: ring.tpot_alone_s)
    stages = [stage for ring in plan.rings for stage in ring.stages]
    times = [stage.fetch_s for stage in stages if stage.fetch_s is not None]
    return Fit(
        form=form,
        tokens_per_s_alone=1 / fastest.tpot_alone_s,
        tokens_per_s_each=None if all_per_s is None else all_per_s / USERS,
        ttft_s=fastest.ttft_s,
        users=plan.users,
        pcs=len(stages),
        fetched_bytes=sum(stage.fetched_bytes for stage in stages),
        fetch_s=max(times, default=None),
    )
