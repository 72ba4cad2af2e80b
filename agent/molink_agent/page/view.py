"""What the owner's page shows, made of the agent's status, the nights' ledger and the limits.

Pure. Sentences are those of the terminal, so that both say the same.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, TypedDict

from molink_agent.daemon.given import GivenLedger, Night, Totals, night_of
from molink_agent.limits.limits import KEYS, OwnerLimits
from molink_agent.status_text import ShownStatus, given_text, now_sentence
from molink_agent.thanks.fetched import Thanks
from molink_agent.thanks.words import ranking_lines, thanks_text

NIGHTS_SHOWN = 14
"""Nights in the list: two weeks."""


class LimitView(TypedDict):
    """One limit, with what it may be."""

    name: str
    value: Any
    """Value as `molink agent set` takes it; null: no limit."""
    usual: Any
    """Value without one of the owner's."""
    meaning: str
    example: str


class NightView(TypedDict):
    """What one night gave."""

    night: str
    given: str


class PageView(TypedDict):
    """The body of GET /state."""

    name: str
    cluster: str
    connected: bool
    paused: bool
    now: str
    """What it does, in a sentence."""
    problems: list[str]
    limits: list[LimitView]
    tonight: str
    """What was given since noon, in words."""
    thanks: str
    """People who were helped this evening, in a sentence; empty: nobody yet."""
    ranking: list[str]
    """Who gave most, a line each; of those who agree."""
    total: str
    nights: list[NightView]
    """Newest first, without those that gave nothing."""


def page_view(
    status: ShownStatus,
    ledger: GivenLedger,
    limits: OwnerLimits,
    now: datetime,
    *,
    paused: bool,
    model_layers: int | None,
    thanks: Thanks | None = None,
) -> PageView:
    """The body of GET /state at the local time `now`."""
    tonight = next((one for one in ledger.nights if one.begins == night_of(now)), None)
    nights = [
        NightView(
            night=f"{one.begins:%d %b} to {one.begins + timedelta(days=1):%d %b}",
            given=_given(one, model_layers),
        )
        for one in reversed(ledger.nights[-NIGHTS_SHOWN:])
    ]
    return {
        "name": status["name"],
        "cluster": status["cluster"],
        "connected": status["connected"],
        "paused": paused,
        "now": now_sentence(status),
        "problems": list(_problems(status)),
        "limits": list(limit_views(limits)),
        "tonight": _given(tonight, model_layers),
        "thanks": thanks_text(thanks, now),
        "ranking": list(ranking_lines(thanks, model_layers)),
        "total": _given(ledger.totals, model_layers),
        "nights": nights,
    }


def _given(figures: Night | Totals | None, model_layers: int | None) -> str:
    return "" if figures is None else given_text(figures.model_dump(), model_layers)


def limit_views(limits: OwnerLimits) -> Iterator[LimitView]:
    """Every limit in the order of the file, set or not."""
    usual = OwnerLimits()
    for key in KEYS:
        yield {
            "name": key.name,
            "value": key.kind.to_json(key.value_in(limits)),
            "usual": key.kind.to_json(key.value_in(usual)),
            "meaning": key.meaning,
            "example": key.typed,
        }


def _problems(status: ShownStatus) -> Iterator[str]:
    if status["limits_problem"]:
        yield status["limits_problem"]
    if status["shortage"]:
        yield f"Nothing is lent now: {status['shortage']}"
