"""The simulated half: the scenario's ring on one PC, and the same requests.

What a ring of processes on one PC has beyond the rings that the simulator is made for, each counted
where it arises and alike in every scenario:

- stages share the PC's cores, and so do the threads and the emulator that carry their chunks, those
  of the coordinator's links too (`OnePc`),
- a step takes longer when the device was idle before it (`StageSpec.after_idle`),
- the coordinator is behind links of its own, as far away as the stages are from one another,
- software on every hop, which waits for a core where stages have them, and between a user and the
  ring.

Nothing is fitted: all but one constant is measured with the profile
(`molink_sim.stage_profile.PcTimes`), and nothing of it by a ring that serves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from molink.config.layer_split import even_split
from molink.errors import UserError
from molink.workload.figures import SeenRequest
from molink.workload.loads import (
    WARM_UP_OUTPUT_TOKENS,
    ScenarioRequest,
    requests_of,
    warm_up_tokens,
)
from molink.workload.scenario_file import ValidationScenario
from molink_sim.outcome import RequestOutcome
from molink_sim.scenario import LinkSpec, OnePc, RequestArrival, RingSpec, Scenario, StageSpec
from molink_sim.simulate import simulate
from molink_sim.stage_profile import PcTimes, StageProfile
from molink_sim.systems import system_named

API_S = 0.0015
"""Seconds of software between a user and the coordinator, both ways: HTTP, JSON, checks, an event.
A service that answers at once took 1.4 to 1.8 ms on the machine of docs/benchmarks, for prompts of
16 to 1,500 tokens: a hundredth of any TTFT over links."""

LEAD_S = 60.0
"""Seconds from the warm-up to the first request: long over on every link that people have."""

COUNTED_S = 600.0
"""How long after the last arrival stages are still watched: until every answer has ended."""

ROW_BYTES_PER_VALUE = 2
"""Activations are 16 bits wide, as `molink serve` keeps them by default."""


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """Requests and busy times of a scenario in virtual time."""

    requests: list[SeenRequest]
    """Requests, in seconds since the scenario's beginning."""
    busy_s: list[float]
    """How long each stage computed, others that took its core included."""


def run_simulated(scenario: ValidationScenario, profile: StageProfile) -> SimulatedRun:
    """Simulate the scenario; its requests are those of `requests_of`, in that order.

    Raises UserError for a ring that cannot be, or a request that does not fit it.
    """
    planned = requests_of(scenario.loads)
    outcome = simulate(_scenario(scenario, planned, profile))
    seen = [_seen(scenario, *pair) for pair in zip(planned, outcome.requests, strict=True)]
    return SimulatedRun(seen, [one.busy_share * outcome.duration_s for one in outcome.stages])


def _seen(
    scenario: ValidationScenario, planned: ScenarioRequest, found: RequestOutcome
) -> SeenRequest:
    if not found.finished:
        raise UserError(
            f"a request of {planned.input_tokens} and {planned.output_tokens} tokens did not end "
            f"in the simulation of {scenario.name}: shorten it, or raise kv_tokens."
        )
    return SeenRequest(
        planned.load,
        planned.input_tokens,
        planned.output_tokens,
        found.arrived_s - LEAD_S,
        [at - LEAD_S for at in found.token_times_s],
    )


def _scenario(
    scenario: ValidationScenario, planned: Sequence[ScenarioRequest], profile: StageProfile
) -> Scenario:
    longest = max(one.input_tokens for one in planned)
    warm_up = RequestArrival(0.0, warm_up_tokens(longest), WARM_UP_OUTPUT_TOKENS)
    arrivals = [
        RequestArrival(LEAD_S + p.start_s, p.input_tokens, p.output_tokens) for p in planned
    ]
    system = system_named(
        "molink",
        codec=scenario.codec,
        micro_batches=scenario.micro_batches,
        span_tokens=scenario.span_tokens,
    )
    return Scenario(
        rings=(_ring(scenario, profile),),
        arrivals=[warm_up, *arrivals],
        system=system,
        duration_s=arrivals[-1].at_s + COUNTED_S,
        warmup_s=LEAD_S,
    )


def _pc(profile: StageProfile) -> PcTimes:
    assert profile.pc is not None, "whoever reads the profile checks that it is there"
    return profile.pc


def _ring(scenario: ValidationScenario, profile: StageProfile) -> RingSpec:
    pc, one_way_s = _pc(profile), scenario.link.one_way_s
    assert profile.model_layers is not None, "as `_pc`"
    link = LinkSpec(scenario.link.rate_mbps, one_way_s)
    stages = []
    for number, (first, end) in enumerate(even_split(profile.model_layers, scenario.stages)):
        cost = profile.cost(end - first, number == 0, number == scenario.stages - 1)
        stages.append(StageSpec(end - first, cost, scenario.kv_tokens, after_idle=pc.after_idle))
    return RingSpec(
        stages=tuple(stages),
        links=(link,) * scenario.stages,
        row_bytes=profile.hidden_size * ROW_BYTES_PER_VALUE,
        coordinator_one_way_s=one_way_s + API_S / 2,
        on_one_pc=OnePc(pc.slowdown_together, pc.chunk_s, pc.hop_s),
    )
