"""A request as `GET /cluster/requests` tells of it: one timeline each.

Times are in seconds since the request was received, lengths in seconds.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageLayers:
    """Stage of a ring, as a timeline names it."""

    node: str
    layers: tuple[int, int]
    """[first, behind the last]."""


@dataclass(frozen=True, slots=True)
class PieceReport:
    """Piece of a prompt that the ring's head sent on its way."""

    tokens: tuple[int, int]
    """[first, behind the last]."""
    sent_s: float


@dataclass(frozen=True, slots=True)
class PauseReport:
    """Gap between two tokens that is far longer than the ring's rounds."""

    began_s: float
    length_s: float
    tokens: int
    """Tokens that had come before the pause."""


@dataclass(frozen=True, slots=True)
class RoundsReport:
    """Gaps between the tokens of one request on one ring."""

    count: int
    p50_s: float | None
    p95_s: float | None
    longest_s: float | None
    pauses: tuple[PauseReport, ...]


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """Part of a request's life on one ring."""

    number: int
    """Number of the ring."""
    stages: tuple[StageLayers, ...]
    submitted_s: float | None
    started_s: float | None
    """When the head began to compute it, as it reports; None: not reported (yet)."""
    first_token_s: float | None
    ended_s: float | None
    tokens: int
    """Tokens that this ring generated."""
    moved_because: str
    """Why the request left the ring for another; empty: it did not."""
    pieces: tuple[PieceReport, ...]
    """Empty: the head does not tell, or it had ended before it was told."""
    rounds: RoundsReport


@dataclass(frozen=True, slots=True, eq=False)
class RequestReport:
    """Sequence that is served, or was."""

    id: str
    choice: int
    """Index among the sequences of its HTTP request."""
    model: str
    key_id: str | None
    """Id of the API key that asks; None: without a key."""
    state: str
    """State: queued, prefill, decode or ended."""
    received_unix_s: float
    """Seconds since 1970."""
    age_s: float
    """Seconds since it was received."""
    prompt_tokens: int
    prompt_tokens_done: int
    """Tokens of the prompt computed so far."""
    cached_tokens: int
    """Tokens of the prompt that were cached; known with the first token."""
    answer_tokens_max: int
    tokens: int
    """Tokens answered so far."""
    forecast_ttft_s: float | None
    """Forecast seconds to its first token, when it was sent to a ring; None: nobody knew."""
    forecast_tpot_s: float | None
    """Forecast seconds between two tokens, when it was sent to a ring; None: nobody knew."""
    ttft_s: float | None
    """Seconds to its first token; None before that."""
    queue_s: float | None
    """Seconds until a ring began to compute it; None: it still waits."""
    prefill_s: float | None
    """Seconds from there to its first token."""
    decode_s: float | None
    """Seconds from its first token to the latest one."""
    tpot_s: float | None
    """Mean time between tokens after the first one; None before the second."""
    total_s: float | None
    """Seconds to its end; None before that."""
    finish_reason: str | None
    """Reason of the end; None while it is live."""
    error: str
    """Sentence that says why; empty: it did not fail."""
    audited: str
    """How its audit is: pending, passed, failed or unfinished; empty: it was not chosen."""
    attempts: tuple[AttemptReport, ...]
    waits_for: str = ""
    """Sentence that says for which room it waits; empty: for none but its turn."""
    forecast_tbt_s: float | None = None
    """Forecast seconds that 99 % of its gaps between tokens stay within, or the percentage that the
    operator has set, when it was sent to a ring; None: nobody knew."""
    tbt_s: float | None = None
    """Seconds that as many of its gaps have stayed within; None before the second token."""

    @property
    def key(self) -> tuple[str, int]:
        """Key that tells the request from every other."""
        return self.id, self.choice

    @property
    def is_live(self) -> bool:
        """Whether it waits or runs."""
        return self.state != "ended"

    @property
    def first_token_s(self) -> float | None:
        """Seconds to its first token, also where an older coordinator tells its parts alone."""
        if self.ttft_s is not None or self.queue_s is None or self.prefill_s is None:
            return self.ttft_s
        return self.queue_s + self.prefill_s

    @property
    def moves(self) -> int:
        """How many rings it has left for another."""
        return sum(1 for one in self.attempts if one.moved_because)


@dataclass(frozen=True, slots=True)
class KeyReport:
    """Key of a user that opens the API, without its secret."""

    id: str
    name: str
    tokens_today: int
    """Tokens of prompts and answers since UTC's midnight."""
    tokens_per_day: int | None = None
    """Tokens that a day allows; None: any number."""
    concurrency: int | None = None
    """Requests that it may have under way at the same time; None: any number."""
    refused_today: int = 0
    """Requests since UTC's midnight that were refused as they were over a limit of the key."""


@dataclass(frozen=True, slots=True)
class RequestsReport:
    """Timelines of requests: those that are live, then the last that have ended."""

    requests: tuple[RequestReport, ...]
    keys: tuple[KeyReport, ...] | None = None
    """Keys of users that open this server, ordered by name; None: it has none."""


@dataclass(frozen=True, slots=True)
class GoodputReport:
    """Requests with targets that have ended since the start, but for those of clients that went
    away."""

    requests: int
    met: int
    """Answers that came whole and within all targets."""
    refused: int
    """Requests that were refused before anything was computed."""
    ttft_missed: int
    """Whole answers that missed the target of the first token, by more than any other."""
    tpot_missed: int
    """The same of the mean time between tokens."""
    tbt_missed: int
    """The same of single gaps between tokens."""
    failed: int
    """Answers that were not whole: an error, or the deadline."""


@dataclass(frozen=True, slots=True)
class EndedReport:
    """Requests that ended within the last minute."""

    ended: int
    """All of them, however they ended."""
    refused: int
    """Those that were refused because too many waited, or a target would be missed."""
    failed: int
