"""Requests as GET /cluster/requests tells them: one timeline each."""

from collections.abc import Iterator
from dataclasses import dataclass

from molink.dashboard.model.fields import Json, count, number, objects, pair, part, text


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """Piece of a prompt that the ring's head sent on its way."""

    start: int
    end: int
    """Behind its last token."""
    sent_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Gap between two tokens that is far longer than the ring's rounds."""

    began_s: float
    length_s: float
    tokens: int
    """Tokens that had come before the pause."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Gaps between the tokens of one request on one ring."""

    count: int
    p50_s: float | None
    p95_s: float | None
    longest_s: float | None
    pauses: tuple[Pause, ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """Part of a request's life on one ring; times in seconds after its arrival."""

    ring: int
    stages: tuple[tuple[str, tuple[int, int] | None], ...]
    """Names of nodes, with their layers."""
    submitted_s: float | None
    started_s: float | None
    first_token_s: float | None
    ended_s: float | None
    tokens: int
    moved_because: str
    pieces: tuple[PromptPiece, ...]
    """Empty: its coordinator or its head does not tell, or it had ended before it was told."""
    rounds: Rounds


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Sequence that is served, or was, as of one look."""

    id: str
    choice: int
    key_id: str
    state: str
    """State: queued, prefill, decode or ended."""
    received_unix_s: float
    age_s: float
    prompt_tokens: int
    prompt_tokens_done: int
    cached_tokens: int
    """Tokens of the prompt that were cached; known with the first token."""
    answer_tokens_max: int
    tokens: int
    forecast_ttft_s: float | None
    """Forecast seconds to its first token, when it was sent to a ring; None: nobody knew."""
    forecast_tpot_s: float | None
    """Forecast seconds between two tokens, when it was sent to a ring; None: nobody knew."""
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    tpot_s: float | None
    total_s: float | None
    finish_reason: str
    error: str
    attempts: tuple[Attempt, ...]

    @property
    def key(self) -> tuple[str, int]:
        """Key that tells the request from every other."""
        return self.id, self.choice

    @property
    def is_live(self) -> bool:
        """Whether it waits or runs."""
        return self.state != "ended"

    @property
    def ttft_s(self) -> float | None:
        """Seconds from its arrival to its first token."""
        if self.queue_s is None or self.prefill_s is None:
            return None
        return self.queue_s + self.prefill_s

    @property
    def moves(self) -> int:
        """How many rings it has left for another."""
        return sum(1 for one in self.attempts if one.moved_because)

    @classmethod
    def of(cls, body: Json) -> "Request":
        """Request in a timeline's JSON."""
        return cls(
            id=text(body, "id"),
            choice=count(body, "choice"),
            key_id=text(body, "key_id"),
            state=text(body, "state"),
            received_unix_s=number(body, "received_unix_s") or 0.0,
            age_s=number(body, "age_s") or 0.0,
            prompt_tokens=count(body, "prompt_tokens"),
            prompt_tokens_done=count(body, "prompt_tokens_done"),
            cached_tokens=count(body, "cached_tokens"),
            answer_tokens_max=count(body, "answer_tokens_max"),
            tokens=count(body, "tokens"),
            forecast_ttft_s=number(body, "forecast_ttft_s"),
            forecast_tpot_s=number(body, "forecast_tpot_s"),
            queue_s=number(body, "queue_s"),
            prefill_s=number(body, "prefill_s"),
            decode_s=number(body, "decode_s"),
            tpot_s=number(body, "tpot_s"),
            total_s=number(body, "total_s"),
            finish_reason=text(body, "finish_reason"),
            error=text(body, "error"),
            attempts=tuple(_attempt(one) for one in objects(body, "attempts")),
        )


def _attempt(body: Json) -> Attempt:
    return Attempt(
        ring=count(body, "ring"),
        stages=tuple((text(one, "node"), pair(one, "layers")) for one in objects(body, "stages")),
        submitted_s=number(body, "submitted_s"),
        started_s=number(body, "started_s"),
        first_token_s=number(body, "first_token_s"),
        ended_s=number(body, "ended_s"),
        tokens=count(body, "tokens"),
        moved_because=text(body, "moved_because"),
        pieces=tuple(_pieces(body)),
        rounds=_rounds(part(body, "rounds")),
    )


def _pieces(body: Json) -> Iterator[PromptPiece]:
    for one in objects(body, "pieces"):
        tokens, sent_s = pair(one, "tokens"), number(one, "sent_s")
        if tokens is not None and sent_s is not None:
            yield PromptPiece(*tokens, sent_s)


def _rounds(body: Json) -> Rounds:
    return Rounds(
        count=count(body, "count"),
        p50_s=number(body, "p50_s"),
        p95_s=number(body, "p95_s"),
        longest_s=number(body, "longest_s"),
        pauses=tuple(
            Pause(
                number(one, "began_s") or 0.0, number(one, "length_s") or 0.0, count(one, "tokens")
            )
            for one in objects(body, "pauses")
        ),
    )
