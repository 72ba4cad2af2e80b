"""Intake of requests: the ring that takes a newcomer, by the operator's policy, or a refusal.

The decisions are in `molink_scheduler.routing` and `molink_scheduler.waiting_line`; here they meet
the rings that serve.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from molink.config.groups import ApiSettings
from molink.coordinator.requests.prefill_rings import RingRoles
from molink.coordinator.requests.serving_ring import ServingRing
from molink.errors import OverloadedError
from molink.serving.service import GenerationRequest
from molink.serving.timeline import RequestTimeline
from molink_scheduler.routing.admission import (
    NO_TARGETS,
    READMITTED_BELOW,
    Targets,
    Verdict,
)
from molink_scheduler.routing.ring_choice import Routing, choose_ring
from molink_scheduler.routing.ring_forecast import (
    RingState,
    forecast_tbt_s,
    forecast_tpot_s,
    forecast_ttft_s,
)
from molink_scheduler.routing.session_homes import SessionHomes
from molink_scheduler.waiting_line import WAIT_S


@dataclass(frozen=True, slots=True)
class Intake:
    """Rules by which newcomers are taken or refused, and given to a ring."""

    wait_s_max: float = WAIT_S
    """Longest wait: newcomers for whom a longer one is forecast are refused."""
    targets: Targets = NO_TARGETS
    """Targets: newcomers are refused for whom a later first token or slower tokens are forecast; a
    request may have its own."""
    routing: Routing = Routing.MOLINK
    homes: SessionHomes = field(default_factory=SessionHomes)
    """The rings that sessions are at home on."""
    roles: RingRoles = field(default_factory=RingRoles)
    """Roles of the rings: which answer, and which compute prompts for them."""

    @classmethod
    def of(cls, api: ApiSettings) -> "Intake":
        """The intake as the operator has set it."""
        return cls(api.queue_s, api.targets, Routing(api.routing))

    def overload(self, rings: Sequence[ServingRing]) -> OverloadedError | None:
        """Why a newcomer is refused where every one of these rings takes no more."""
        now = time.monotonic()
        if not rings or not all(ring.is_full(self.wait_s_max, now) for ring in rings):
            return None
        lines = [ring.client.forecaster.line for ring in rings]
        wait_s = max(1.0, min(line.wait_s(now) or WAIT_S for line in lines))
        waiting, running = (
            sum(line.waiting for line in lines),
            sum(line.running for line in lines),
        )
        return OverloadedError(
            f"{running} requests run and {waiting} wait, as many as can be answered in time: send "
            "yours again later.",
            wait_s,
        )

    def trouble(self, rings: Sequence[ServingRing]) -> str:
        """Sentence where the operator's targets refuse everybody, as tokens follow each other more
        slowly on each of these rings when they are idle; empty: they do not, or nobody knows."""
        paces = [ring.client.forecaster.pace for ring in rings]
        round_s = min((one.pace.tpot_alone_s for one in paces), default=0.0)
        wanted_s = self.targets.between_tokens_s
        if round_s <= wanted_s or not all(one.has_learned for one in paces):
            return ""
        return (
            f"The target of {1000 * wanted_s:g} ms between tokens is below the round of every "
            f"ring, {_figure(1000 * round_s)} ms at least: raise it, or all requests are refused "
            "(--tpot-target-ms, --tbt-target-ms)."
        )

    def choose(
        self,
        rings: Sequence[ServingRing],
        request: GenerationRequest,
        timeline: RequestTimeline,
        output_tokens: int,
        draw: float,
        *,
        accepted: bool,
    ) -> ServingRing:
        """The ring for a request of which so many tokens are generated; `draw` is from 0 to below
        1. Raises OverloadedError for a request that no ring has accepted yet, when its targets are
        missed on all of them."""
        known = len(request.prompt_token_ids) + output_tokens
        session = request.named_session
        home = self.homes.of(session)
        candidates = [(ring, _state_for(ring, request, home)) for ring in rings]
        targets = request.targets
        if targets.are_set and not accepted:
            candidates = _admitting(candidates, request, targets)
        states = [state for _, state in candidates]
        left_tokens = request.sampling.max_tokens - output_tokens
        ring, state = candidates[choose_ring(self.routing, states, known, left_tokens, draw)]
        if ring.client.forecaster.pace.is_known(state, known):
            timeline.promised(
                forecast_ttft_s(state, known),
                forecast_tpot_s(state, known),
                forecast_tbt_s(state, known, targets.tbt_percentile),
            )
        self.homes.went(session, ring.number)
        return ring


def _state_for(ring: ServingRing, request: GenerationRequest, home: int | None) -> RingState:
    """State of a ring that the request would find, whose session is at home on ring `home`."""
    state = ring.client.state_for(request, ring.tokens_per_s)
    return replace(state, is_home=True) if ring.number == home else state


def _admitting(
    candidates: Sequence[tuple[ServingRing, RingState]],
    request: GenerationRequest,
    targets: Targets,
) -> list[tuple[ServingRing, RingState]]:
    """Rings that are forecast to meet the targets, or whose pace nobody knows. Raises
    OverloadedError when there is none."""
    known, prompt_tokens = [], len(request.prompt_token_ids)
    for ring, state in candidates:
        forecaster = ring.client.forecaster
        if forecaster.pace.is_known(state, prompt_tokens):
            verdict = forecaster.admission.decide(state, prompt_tokens, targets, request.priority)
            known.append((ring, verdict))
    refusing = [ring for ring, verdict in known if not verdict.admitted]
    admitting = [(ring, state) for ring, state in candidates if ring not in refusing]
    if not admitting:
        raise _refusal([verdict for _, verdict in known], targets)
    return admitting


def _refusal(verdicts: Sequence[Verdict], targets: Targets) -> OverloadedError:
    """Error for a newcomer whose targets are missed on all rings, by the ring that is the first to
    meet them."""
    soonest = min(verdicts, key=lambda verdict: (verdict.retry_after_s, verdict.ttft_s))
    forecasts, wanted = [], []
    if targets.ttft_s is not None:
        forecasts.append(f"the first token in {_figure(soonest.ttft_s)} s")
        wanted.append(f"{targets.ttft_s:g} s (ttft_target_s)")
    if targets.tpot_s is not None:
        ones = "tokens" if targets.ttft_s is None else "further ones"
        forecasts.append(f"{ones} every {_figure(1000 * soonest.tpot_s)} ms")
        wanted.append(f"{1000 * targets.tpot_s:g} ms (tpot_target_ms)")
    if targets.tbt_s is not None:
        part = f"{targets.tbt_percentile:g} % of gaps between tokens"
        forecasts.append(f"{part} within {_figure(1000 * soonest.tbt_s)} ms")
        wanted.append(f"{1000 * targets.tbt_s:g} ms (tbt_target_ms)")
    help_ = "send yours again later."
    if soonest.hopeless and targets.between_tokens_s < soonest.alone_s:
        alone = _figure(1000 * soonest.alone_s)
        help_ = f"a round of the ring takes {alone} ms without other users: raise the target."
    elif soonest.hopeless:
        help_ = "that would be missed without other users too: raise it, or send less."
    elif targets.missed_by(*soonest.seconds) <= 1:
        spare = f"{1 - READMITTED_BELOW:.0%}"
        help_ = f"others were refused, until one has {spare} to spare: send yours again later."
    return OverloadedError(
        f"The forecast is {' and '.join(forecasts)}, and wanted at most {' and '.join(wanted)}: "
        f"{help_}",
        soonest.retry_after_s,
    )


def _figure(value: float) -> str:
    """A time for people; short ones have two digits, so that none is told as 0.0."""
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"
