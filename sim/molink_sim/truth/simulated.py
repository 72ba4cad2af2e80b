"""The simulated half: the scenario's ring on one PC, and the same requests.

What a ring of processes on one PC has beyond the rings that the simulator is made for, each counted
where it arises and alike in every scenario:

- stages share the PC's cores (`RingSpec.slowdown_together`, measured with the profile),
- the coordinator is behind links of its own, as far away as the stages are from one another,
- software between two steps, and between a user and the ring (the two constants below).
"""

from molink.bench.truth.figures import SeenRequest
from molink.bench.truth.loads import requests_of
from molink.bench.truth.scenario_file import TruthScenario
from molink.bench.truth.warm_up import WARM_UP_OUTPUT_TOKENS, warm_up_tokens
from molink.config.layer_split import even_split
from molink.errors import UserError
from molink_sim.machines.stage_profile import StageProfile
from molink_sim.outcome import Outcome
from molink_sim.scenario import Arrival, LinkSpec, RingSpec, Scenario, StageSpec
from molink_sim.simulate import simulate
from molink_sim.systems import system_named

__all__ = ["simulated_outcome", "simulated_requests"]

HOP_SOFTWARE_S = 0.0
API_SOFTWARE_S = 0.0

LEAD_S = 60.0
"""From the warm-up to the first request: long over on every link that people have."""

ROW_BYTES_PER_VALUE = 2
"""Activations are 16 bits wide, as `molink serve` keeps them by default."""


def simulated_requests(scenario: TruthScenario, profile: StageProfile) -> list[SeenRequest]:
    """What the users of the scenario see, in seconds since its beginning.

    Raises UserError for a ring that cannot be, or a request that does not fit it.
    """
    outcome = simulated_outcome(scenario, profile)
    planned = requests_of(scenario.loads)
    seen = []
    for one, found in zip(planned, outcome.requests, strict=True):
        if not found.finished:
            raise UserError(
                f"a request of {one.input_tokens} and {one.output_tokens} tokens did not end in "
                f"the simulation of {scenario.name}: shorten it, or raise kv_tokens."
            )
        times = [at - LEAD_S for at in found.token_times_s]
        asked_s = found.arrived_s - LEAD_S
        seen.append(SeenRequest(one.load, one.input_tokens, one.output_tokens, asked_s, times))
    return seen


def simulated_outcome(scenario: TruthScenario, profile: StageProfile) -> Outcome:
    """Run the scenario in virtual time; its requests are those of `requests_of`, in that order."""
    planned = requests_of(scenario.loads)
    longest = max(one.input_tokens for one in planned)
    warm_up = Arrival(0.0, warm_up_tokens(longest), WARM_UP_OUTPUT_TOKENS)
    arrivals = [Arrival(LEAD_S + p.start_s, p.input_tokens, p.output_tokens) for p in planned]
    system = system_named(
        "molink",
        policy=scenario.policy,
        wire=scenario.wire,
        micro_batches=scenario.micro_batches,
        span_tokens=scenario.span_tokens,
        hop_software_s=HOP_SOFTWARE_S,
    )
    return simulate(
        Scenario(
            rings=(_ring(scenario, profile),),
            arrivals=[warm_up, *arrivals],
            system=system,
            duration_s=arrivals[-1].at_s + 1.0,
            warmup_s=LEAD_S,
        )
    )


def _ring(scenario: TruthScenario, profile: StageProfile) -> RingSpec:
    one_way_s = scenario.link.one_way_s
    link = LinkSpec(scenario.link.rate_mbps, one_way_s)
    stages = []
    for number, (first, end) in enumerate(even_split(profile.model_layers, scenario.stages)):
        cost = profile.cost(end - first, number == 0, number == scenario.stages - 1)
        stages.append(StageSpec(end - first, cost, scenario.kv_tokens))
    return RingSpec(
        stages=tuple(stages),
        links=(link,) * scenario.stages,
        row_bytes=profile.hidden_size * ROW_BYTES_PER_VALUE,
        coordinator_one_way_s=one_way_s + API_SOFTWARE_S,
        slowdown_together=profile.slowdown_together,
    )
