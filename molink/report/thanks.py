"""Report to a volunteer: for how many people a PC has computed tonight, and who gave most."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankReport:
    """Place of a PC among those whose owners agree to be named."""

    name: str
    token_layers: int
    """Tokens times layers that it has computed since it joined."""
    is_you: bool
    """Whether it is the PC that asks."""


@dataclass(frozen=True, slots=True)
class ThanksReport:
    """People that were helped since noon, or since the coordinator was started. Who they are, and
    what they asked, is not in it."""

    since_unix_s: float
    people: int
    """Different API keys whose answers this PC has computed a part of; all who ask without a key
    count as one."""
    answers: int
    cluster_people: int
    """The same for all PCs together."""
    cluster_answers: int
    ranking: tuple[RankReport, ...]
    """First who gave most; empty: its owner does not agree to be named, and sees nobody's name."""
