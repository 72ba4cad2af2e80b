"""Detector of rings that serve and do not move on, and of the place where they stand.

Each of its members may be alive, acknowledge every message and report itself well, and yet no token
comes. What cannot be lied about is what arrives here: tokens. When sequences wait for some and none
has come for many times as long as usual, the ring stands. A single micro-batch, or the rows of one
prompt, may be lost while others go round: that shows its head, which knows when each left.

A prompt brings no token until its end, and the longer it is, or the more sequences are computed
again, the less is known of when that will be. So a ring with rows of a prompt under way moves on
while rows leave the tail and come back to the head, about which both would have to lie; a request
that is starved all the same moves to another ring (`ring_client`).

Where it stands, the stages' counts of rows show. Each says how many it took in and how many it put
out. Behind the place where rows are held everything runs dry, so the last place on the way round at
which some are missing is the one: within a stage, that stage has failed; between two, one of both
lies or their link is dead, and the failure is the pair's (`blame`). Where all counts agree the tail
keeps its tokens from us if the head gets them, else the head sends nothing out.

Pure: times are arguments, in seconds on a clock that never jumps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from molink.coordinator.ring.live_sequence import Served
from molink.stage_protocol.progress import StageProgress
from molink_scheduler.head.settings import PREFILL_TOKENS_IN_FLIGHT_MAX
from molink_scheduler.routing.line_watch import STARVED_MAX

PATIENCE_MIN_S = 10.0
"""Users' requests are to go on elsewhere within 15 s; a stall of a home Wi-Fi is over in two to
five."""

IDLE_S, WAKING_PATIENCE_S = 60.0, 30.0
"""After so long without a request the first one is waited for longer: a router may have forgotten
each hop's connection, which shows after two seconds of silence, one hop after the other, and
weights may have been swapped out."""

ROUNDS_MAX = 20.0
"""A trip that takes so many times as long as usual does not come back."""

PROMPT_FACTOR = 3.0
"""Times what a prompt takes by the forecast, decode that goes before it included."""

LATE_S = 3.0
"""Without being asked for so long this PC was suspended or overloaded, and has heard nothing."""


@dataclass(frozen=True, slots=True)
class ForecastPace:
    """Forecast of what a ring takes; without one, of the slowest that is of any use."""

    round_s: float = 3.0
    prompt_token_s: float = 0.25
    """Time to a first token that each token of a prompt adds."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """A ring that stands, and whom that is held against."""

    reason: str
    """A clause."""
    stage: int
    """Its number."""
    about: int | None = None
    """Number of the stage with which it failed; None: it failed by itself."""

    @classmethod
    def starving(cls, stages: int) -> "Stuck":
        """A ring of so many stages of which users hear nothing while others do: its head does not
        begin them, or its tail keeps their tokens."""
        reason = f"{STARVED_MAX} requests were left lying while others were served"
        return cls(reason, stages - 1, 0) if stages > 1 else cls(reason, 0)


@dataclass(slots=True)
class RingProgress:
    """Watch over one ring that serves."""

    pace: ForecastPace
    _seen_at: float | None = None
    _tokens: int = -1
    _came_at: float = 0.0
    """When the ring last moved on, or when nobody last waited for a token."""
    _flowed: tuple[int, int] = (0, 0)
    """Rows that had come back to the head, and left the tail, then."""
    _idle_since: float | None = None
    """None: somebody waits for a token."""
    _is_waking: bool = False
    """Whether no token has come since the ring was idle for long."""
    _missing: list[int] | None = None
    """The fewest rows that were missing at each place since the ring seems to stand."""
    _returned: int = 0
    """Rows that had come back to the head then."""

    def update(self, served: Served, stages: Sequence[StageProgress], now: float) -> Stuck | None:
        """Take in how the ring is, about once a second; what is wrong once that is certain."""
        is_late = self._seen_at is None or now - self._seen_at > LATE_S
        is_idle = not served.decoding and not served.prompt_tokens
        has_token = served.tokens != self._tokens
        if is_late or is_idle or has_token or self._prompt_flows(stages):
            self._came_at = now
            self._flowed = stages[0].rows_in, stages[-1].rows_out
        self._note_idle(now, is_idle=is_idle, has_token=has_token)
        self._seen_at, self._tokens = now, served.tokens
        share, reason = max(self._waits(served, stages[0], now))
        if share < 0.5 or is_late:
            self._missing = None
            return None
        self._count(stages)
        return self._culprit(stages, reason) if share >= 1 else None

    def _note_idle(self, now: float, *, is_idle: bool, has_token: bool) -> None:
        since = self._idle_since
        if is_idle:
            self._idle_since = now if since is None else since
            return
        was_long = since is not None and now - since > IDLE_S
        self._is_waking = not has_token and (was_long or self._is_waking)
        self._idle_since = None

    def _prompt_flows(self, stages: Sequence[StageProgress]) -> bool:
        """Whether rows have gone round since the ring last moved on, some of a prompt among them;
        without one each round brings a token."""
        returned, left = self._flowed
        is_prompt = stages[0].prompt_waits_s > 0
        return is_prompt and stages[0].rows_in > returned and stages[-1].rows_out > left

    def _waits(self, served: Served, head: StageProgress, now: float) -> list[tuple[float, str]]:
        """Each thing that is waited for: the share of its patience that is over, and a clause."""
        round_s = max(served.round_s, self.pace.round_s)
        least_s = WAKING_PATIENCE_S if self._is_waking else PATIENCE_MIN_S
        rounds_s = max(least_s, ROUNDS_MAX * round_s)
        silent_s, token_s = now - self._came_at, PROMPT_FACTOR * self.pace.prompt_token_s
        first_s = least_s + token_s * served.prompt_tokens
        flight_s = least_s + token_s * PREFILL_TOKENS_IN_FLIGHT_MAX
        waits = [
            (silent_s, rounds_s if served.decoding else first_s, "no token has come"),
            (head.round_waits_s, rounds_s, "a micro-batch has not come back"),
            (head.prompt_waits_s, flight_s, "rows of a prompt have not come back"),
        ]
        return [(s / patience_s, f"{what} for {s:.0f} s") for s, patience_s, what in waits]

    def _count(self, stages: Sequence[StageProgress]) -> None:
        missing = _missing(stages)
        if self._missing is None:
            self._missing, self._returned = missing, stages[0].rows_in
        self._missing = [min(*both) for both in zip(self._missing, missing, strict=True)]

    def _culprit(self, stages: Sequence[StageProgress], reason: str) -> Stuck:
        missing = self._missing or []
        places = [place for place, rows in enumerate(missing) if rows > 0]
        if not places:
            keeps = len(stages) - 1 if stages[0].rows_in > self._returned else 0
            return Stuck(reason, keeps)
        stage, is_within = divmod(places[-1], 2)
        if is_within:
            return Stuck(reason, stage + 1)
        to = (stage + 1) % len(stages)
        if to == stage:
            return Stuck(reason, stage)
        if stages[to].dropped:
            return Stuck(f"{reason}, and messages were refused", to, stage)
        return Stuck(reason, stage, to)


def _missing(stages: Sequence[StageProgress]) -> list[int]:
    """Rows that are missing on each link and within each stage behind the head, on the way round
    from the head."""
    found = []
    for here, following in zip(stages, (*stages[1:], stages[0]), strict=True):
        found.append(here.rows_out - following.rows_in)
        if following is not stages[0]:
            found.append(following.rows_in - following.rows_out)
    return found
