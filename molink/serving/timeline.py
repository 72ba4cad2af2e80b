"""Timeline of each request: its wait, the rings that computed it, its end.

The API makes a timeline with the request, the service over the rings fills it, and whoever shows
requests reads it: the API's headers, `GET /cluster/requests`, metrics, traces. So all of them tell
the same story of a request, and none of them is on its way.

Times are seconds on the monotonic clock, so that they can be subtracted; a report gives them as
seconds since the request was received, beside the one wall clock time of that moment.
"""

import secrets
import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import pairwise

from molink.report.requests import (
    AttemptReport,
    PauseReport,
    PieceReport,
    RequestReport,
    RoundsReport,
    StageLayers,
)
from molink.serving.progress import PromptPiece, PromptPieces, Rounds
from molink_scheduler.request import WishedTokens
from molink_scheduler.routing.admission import NO_TARGETS, Targets

ID_BYTES = 12

OVERLOADED = "overloaded"
"""Finish reason of a request that was refused because others, or its targets, left no room for it:
an answer that its client asks for, not a fault (429)."""

DIGITS = 6
"""Microseconds."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Arrival of one HTTP request, which may ask for several sequences."""

    request_id: str = field(default_factory=lambda: secrets.token_hex(ID_BYTES))
    """Id that the client gave, or that was made here; a printable line."""
    operation: str = "text_completion"
    """Operation in OpenTelemetry's words: "chat" or "text_completion"."""
    traceparent: str = ""
    """W3C's header, by which the request belongs to its client's trace; empty: it sent none."""
    at: float = field(default_factory=time.monotonic)
    unix_s: float = field(default_factory=time.time)


ARRIVAL: ContextVar[Arrival | None] = ContextVar("arrival", default=None)
"""The HTTP request that the running task serves; None outside of one. Set by the API, read where
timelines and log lines are made."""


@dataclass(slots=True)
class RingAttempt:
    """Part of a request's life that one ring computed."""

    ring: int
    """The ring's number."""
    stages: tuple[StageLayers, ...]
    submitted_at: float
    wishes: WishedTokens = ()
    """First tokens of the prompt that the ring keeps for it, and for how many seconds; none where
    it caches nothing."""
    number: int = 0
    """The ring's own number of it; 0: it has none yet."""
    started_at: float | None = None
    """When the head began to compute it, as it reports; None: not reported (yet)."""
    first_token_at: float | None = None
    ended_at: float | None = None
    tokens: int = 0
    """Tokens that this ring generated."""
    moved_because: str = ""
    """Why the request left this ring for another; empty: it did not."""
    prompt: PromptPieces = field(default_factory=PromptPieces)
    rounds: Rounds = field(default_factory=Rounds)
    last_token_at: float | None = None


@dataclass(slots=True, eq=False)
class RequestTimeline:
    """Record of one sequence from its arrival to its end, while it is served and after."""

    model: str
    prompt_tokens: int
    answer_tokens_max: int
    key_id: str | None = None
    """Id of the API key that asks; None: without a key."""
    choice: int = 0
    """Index among the sequences of its HTTP request."""
    arrival: Arrival = field(default_factory=lambda: ARRIVAL.get() or Arrival())
    attempts: list[RingAttempt] = field(default_factory=list)
    prompt_tokens_done: int = 0
    """Computed so far, as the ring's head reports."""
    tokens: int = 0
    """Answered so far."""
    first_token_at: float | None = None
    last_token_at: float | None = None
    finished_at: float | None = None
    finish_reason: str | None = None
    """Reason of the end: "stop", "length", "cancelled" (its client has gone), "overloaded" or
    "error"; None while it is live."""
    error: str = ""
    """Sentence that says why, for "overloaded" and "error"."""
    audited: str = ""
    """How its audit is: "pending", "passed", "failed" or "unfinished"; empty: it was not chosen for
    one."""

    waits_for: str = ""
    """Sentence that says for which room it waits; empty: for none but its turn."""
    cached_tokens: int = 0
    """Tokens of the prompt that the first ring to answer had cached."""
    forecast_ttft_s: float | None = None
    """Seconds to the first token, as forecast when the request was first sent to a ring; None: it
    was sent to none, or the ring's pace was not known."""
    forecast_tpot_s: float | None = None
    """Mean seconds between two tokens, as forecast when it was first sent to a ring; None:
    unknown."""
    forecast_tbt_s: float | None = None
    """Seconds that the targets' percentile of its gaps stays within, as forecast with it."""
    targets: Targets = NO_TARGETS
    """Times that it was to get, its own or the operator's."""

    # -- filled by the service -------------------------------------------------------------------

    def submitted(self, ring: int, stages: Sequence[StageLayers], now: float) -> None:
        """A ring has been asked to compute it."""
        self.attempts.append(RingAttempt(ring, tuple(stages), now))

    def promised(self, ttft_s: float, tpot_s: float, tbt_s: float) -> None:
        """Note what was forecast when the request was first sent to a ring."""
        if self.forecast_ttft_s is None:
            self.forecast_ttft_s, self.forecast_tpot_s = ttft_s, tpot_s
            self.forecast_tbt_s = tbt_s

    def numbered(self, number: int) -> None:
        """The ring has given it this number."""
        if self.attempts:
            self.attempts[-1].number = number

    def answered(self, waited_s: float, cached_tokens: int, now: float) -> None:
        """A ring reports with its first token how long the request had waited there, and how much
        of it was cached; of the latter the first answer's counts. What cannot be is left out."""
        is_possible = 0 <= cached_tokens <= self.prompt_tokens + self.tokens
        if not (waited_s >= 0 and is_possible):  # No number is less than NaN.
            return
        if self.tokens == 0:
            self.cached_tokens = min(cached_tokens, self.prompt_tokens)
        self.prompt_computed(self.prompt_tokens, waited_s, now)

    def prompt_computed(self, tokens: int, waited_s: float, now: float) -> None:
        """The ring's head reports so many tokens of the prompt as under way, and for how long the
        request had waited there. The first report of a wait counts: a head that computes a prompt
        anew, or has forgotten when it came, knows of none."""
        attempt = self.attempts[-1]
        if attempt.started_at is None:
            attempt.started_at = min(attempt.submitted_at + waited_s, attempt.first_token_at or now)
        if self.first_token_at is None:
            self.prompt_tokens_done = min(tokens, self.prompt_tokens)

    def piece_sent(self, start: int, end: int, after_s: float, now: float) -> None:
        """The ring's head reports that it began to compute these tokens of the prompt so long after
        the request had come there."""
        attempt = self.attempts[-1]
        at = min(attempt.submitted_at + max(0.0, after_s), now)
        if 0 <= start < end <= self.prompt_tokens + self.tokens:
            attempt.prompt.add(PromptPiece(start, end, at))

    def tokens_came(self, count: int, now: float) -> None:
        """Note that so many tokens of the answer have come."""
        attempt = self.attempts[-1]
        if attempt.last_token_at is not None:
            attempt.rounds.add(attempt.last_token_at, now, attempt.tokens)
        attempt.last_token_at = now
        self.tokens += count
        attempt.tokens += count
        self.last_token_at = now
        if attempt.first_token_at is None:
            attempt.first_token_at = now
        if self.first_token_at is None:
            self.first_token_at, self.prompt_tokens_done = now, self.prompt_tokens

    def moved(self, reason: str, now: float) -> None:
        """Note that its ring has ended, or left it lying: another will go on."""
        self.attempts[-1].moved_because, self.attempts[-1].ended_at = reason, now

    def resumed(self, reason: str, now: float) -> None:
        """Note that its ring has lost a stage, and goes on with it."""
        if self.attempts:
            last = self.attempts[-1]
            self.moved(reason, now)
            self.submitted(last.ring, last.stages, now)

    def finished(self, reason: str, now: float, error: str = "") -> None:
        """Note that it has ended; later news of its end do not count."""
        if self.finished_at is not None:
            return
        self.finish_reason, self.error, self.finished_at = reason, error, now
        if self.attempts and self.attempts[-1].ended_at is None:
            self.attempts[-1].ended_at = now

    # -- derived ---------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """ "queued", "prefill", "decode" or "ended"."""
        if self.finished_at is not None:
            return "ended"
        if self.first_token_at is not None:
            return "decode"
        return "queued" if self._started_at is None else "prefill"

    @property
    def moves(self) -> int:
        """How many rings it has left for another."""
        return sum(1 for attempt in self.attempts if attempt.moved_because)

    @property
    def queue_s(self) -> float | None:
        """Seconds from its arrival until a ring began to compute it; None: it still waits. Where
        the ring's head has not reported when it began, until it was submitted there."""
        if not self.attempts or (self._started_at is None and self.first_token_at is None):
            return None
        return self._computed_from - self.arrival.at

    @property
    def prefill_s(self) -> float | None:
        """Seconds from there to its first token; None before that."""
        if self.first_token_at is None:
            return None
        return self.first_token_at - self._computed_from

    @property
    def decode_s(self) -> float | None:
        """Seconds from its first token to the latest one; None before the first."""
        if self.first_token_at is None or self.last_token_at is None:
            return None
        return self.last_token_at - self.first_token_at

    @property
    def ttft_s(self) -> float | None:
        """Seconds from its arrival to its first token; None before that."""
        return None if self.first_token_at is None else self.first_token_at - self.arrival.at

    @property
    def tpot_s(self) -> float | None:
        """Mean time between tokens after the first one; None before the second."""
        return (
            None if self.tokens < 2 or self.decode_s is None else self.decode_s / (self.tokens - 1)
        )

    def gaps_within_s(self, percentile: float) -> float | None:
        """Seconds that so many per cent of the gaps between its tokens stay within, to five per
        cent, those from one ring to the next among them; None before the second token."""
        moves, had = Rounds(), [one for one in self.attempts if one.first_token_at is not None]
        for left, took in pairwise(had):
            if left.last_token_at is not None and took.first_token_at is not None:
                moves.add(left.last_token_at, took.first_token_at, left.tokens)
        return moves.with_all(one.rounds for one in had).quantile_s(percentile / 100)

    @property
    def total_s(self) -> float | None:
        """Seconds from its arrival to its end; None before that."""
        return None if self.finished_at is None else self.finished_at - self.arrival.at

    @property
    def _started_at(self) -> float | None:
        return self.attempts[0].started_at if self.attempts else None

    @property
    def _computed_from(self) -> float:
        first = self.attempts[0]
        return first.submitted_at if first.started_at is None else first.started_at

    def report(self, now: float) -> RequestReport:
        """Report on the request: times in seconds since its arrival."""
        return RequestReport(
            id=self.arrival.request_id,
            choice=self.choice,
            model=self.model,
            key_id=self.key_id,
            state=self.state,
            received_unix_s=round(self.arrival.unix_s, 3),
            age_s=self._elapsed(now),
            prompt_tokens=self.prompt_tokens,
            prompt_tokens_done=self.prompt_tokens_done,
            cached_tokens=self.cached_tokens,
            answer_tokens_max=self.answer_tokens_max,
            tokens=self.tokens,
            forecast_ttft_s=_rounded(self.forecast_ttft_s),
            forecast_tpot_s=_rounded(self.forecast_tpot_s),
            ttft_s=_rounded(self.ttft_s),
            queue_s=_rounded(self.queue_s),
            prefill_s=_rounded(self.prefill_s),
            decode_s=_rounded(self.decode_s),
            tpot_s=_rounded(self.tpot_s),
            forecast_tbt_s=_rounded(self.forecast_tbt_s),
            tbt_s=_rounded(self.gaps_within_s(self.targets.tbt_percentile)),
            total_s=self._elapsed_if(self.finished_at),
            finish_reason=self.finish_reason,
            error=self.error,
            audited=self.audited,
            attempts=tuple(self._attempt(attempt) for attempt in self.attempts),
            waits_for=self.waits_for if self.finished_at is None else "",
        )

    def _attempt(self, attempt: RingAttempt) -> AttemptReport:
        return AttemptReport(
            number=attempt.ring,
            stages=attempt.stages,
            submitted_s=self._elapsed(attempt.submitted_at),
            started_s=self._elapsed_if(attempt.started_at),
            first_token_s=self._elapsed_if(attempt.first_token_at),
            ended_s=self._elapsed_if(attempt.ended_at),
            tokens=attempt.tokens,
            moved_because=attempt.moved_because,
            pieces=tuple(
                PieceReport((piece.start, piece.end), self._elapsed(piece.at))
                for piece in attempt.prompt.pieces
            ),
            rounds=self._rounds(attempt.rounds),
        )

    def _rounds(self, rounds: Rounds) -> RoundsReport:
        return RoundsReport(
            count=rounds.count,
            p50_s=_rounded(rounds.quantile_s(0.5)),
            p95_s=_rounded(rounds.quantile_s(0.95)),
            longest_s=_rounded(rounds.longest_s) if rounds.count else None,
            pauses=tuple(
                PauseReport(self._elapsed(pause.at), round(pause.length_s, DIGITS), pause.tokens)
                for pause in rounds.pauses
            ),
        )

    def _elapsed(self, at: float) -> float:
        return round(at - self.arrival.at, DIGITS)

    def _elapsed_if(self, at: float | None) -> float | None:
        return None if at is None else self._elapsed(at)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, DIGITS)
