"""Thanks in words, for the owner's page and the terminal. Pure."""

from collections.abc import Iterator
from datetime import datetime

from molink.printable import printable_line
from molink_agent.daemon.given import night_of
from molink_agent.status_text import WORDS_PER_TOKEN
from molink_agent.thanks.fetched import Rank, Thanks


def thanks_text(thanks: Thanks | None, now: datetime) -> str:
    """This evening in people; empty: nobody was helped, or nothing is known of this night."""
    if thanks is None or not thanks.cluster_answers:
        return ""
    since = datetime.fromtimestamp(thanks.since_unix_s)
    if night_of(since) != night_of(now):
        return ""
    whole = f"{_people(thanks.cluster_people)} with {_answers(thanks.cluster_answers)}"
    if not thanks.answers:
        return f"Since {since:%H:%M} the cluster has helped {whole}; this PC was not needed yet."
    own = f"{_people(thanks.people)} with {_answers(thanks.answers)}"
    return f"Since {since:%H:%M} this PC has helped {own}, the whole cluster {whole}. Thank you!"


def ranking_lines(thanks: Thanks | None, model_layers: int | None) -> Iterator[str]:
    """Who gave most of those who agree to be named, a line each."""
    for place, rank in enumerate(thanks.ranking if thanks is not None else (), start=1):
        you = " (this PC)" if rank.is_you else ""
        yield f"{place}. {printable_line(rank.name)}{you}: {_given(rank, model_layers)}"


def _given(rank: Rank, model_layers: int | None) -> str:
    if model_layers is None:
        return f"{rank.token_layers:,} tokens x layers"
    return f"{round(WORDS_PER_TOKEN * rank.token_layers / model_layers):,} words"


def _people(count: int) -> str:
    return "1 person" if count == 1 else f"{count} people"


def _answers(count: int) -> str:
    return "1 answer" if count == 1 else f"{count:,} answers"
