"""Check that a scenario is possible: one sentence for the first thing that is not."""

import math
from itertools import pairwise

from molink.errors import UserError
from molink_scheduler.batch import DRAFTS_MAX, MICRO_BATCH_COUNT_MAX
from molink_scheduler.codec_choice import CODEC_CHOICES
from molink_sim.network.make import LINK_MODELS
from molink_sim.network.policies import POLICIES
from molink_sim.ring.messages import CODEC_RATIO
from molink_sim.scenario import (
    DuplicatedMessages,
    FaultSpec,
    HostSuspended,
    LateMessages,
    LinkSpec,
    NodeLoss,
    OnePc,
    RequestArrival,
    RingSpec,
    Scenario,
    SlowNode,
    StageSpec,
    SystemSpec,
)

STAGES_MAX = 256
"""The longest ring of a model with fewer layers than that."""


def check_scenario(scenario: Scenario) -> None:
    """Raise UserError when it cannot be run."""
    _check(bool(scenario.rings), "A scenario needs at least one ring.")
    for number, ring in enumerate(scenario.rings):
        _check_ring(number, ring)
    _check_system(scenario.system)
    _check_times(scenario)
    _check_arrivals(scenario)
    for fault in scenario.faults:
        _check_fault(fault, scenario.rings)


def _check_fault(fault: FaultSpec, rings: tuple[RingSpec, ...]) -> None:
    name = f"The fault {type(fault).__name__} at {fault.at_s:g} s"
    _check(0 <= fault.ring < len(rings), f"{name} needs a ring that exists, got {fault.ring}.")
    count = len(rings[fault.ring].stages)
    _check(0 <= fault.place < count, f"{name} needs a place of 0 to {count - 1}.")
    _check(0 <= fault.at_s < fault.until_s < math.inf, f"{name} must end after it begins.")
    match fault:
        case SlowNode():
            _check(0 < fault.factor < math.inf, f"{name} needs a factor above 0.")
        case LateMessages() | DuplicatedMessages():
            _check(0 <= fault.share <= 1, f"{name} needs a share of 0 to 1, got {fault.share:g}.")
            _check_delay(f"the delay of {name}", fault.delay_s)
        case NodeLoss():
            has_both = fault.neighbour_takes and fault.shadow_lacks_tokens is not None
            _check(not has_both, f"{name} has a shadow, or a neighbour that takes its layers.")
        case HostSuspended():
            _check(fault.silent_s > 0, f"{name} is noticed some time after it begins.")
            _check_delay(f"the loading after {name}", fault.load_s)


def _check_ring(number: int, ring: RingSpec) -> None:
    count = len(ring.stages)
    _check(1 <= count <= STAGES_MAX, f"Ring {number} must have 1 to {STAGES_MAX} stages.")
    _check(
        len(ring.links) == count,
        f"Ring {number} has {count} stages and {len(ring.links)} links: give one link per stage.",
    )
    _check(ring.row_bytes >= 1, f"Rows of ring {number} must have at least one byte.")
    _check_delay(f"the coordinator's delay to ring {number}", ring.coordinator_one_way_s)
    if ring.on_one_pc is not None:
        _check_pc(number, ring.on_one_pc)
    for index, stage in enumerate(ring.stages):
        _check_stage(f"stage {index} of ring {number}", stage)
    for index, link in enumerate(ring.links):
        _check_link(f"link {index} of ring {number}", link)


def _check_pc(number: int, pc: OnePc) -> None:
    _check(
        bool(pc.slowdown_together) and all(1 <= s < math.inf for s in pc.slowdown_together),
        f"Stages of ring {number} that share cores take at least as long as alone.",
    )
    _check_delay(f"the chunk's share of the PC of ring {number}", pc.chunk_s)
    _check_delay(f"the software's time per hop of ring {number}", pc.hop_s)


def _check_stage(name: str, stage: StageSpec) -> None:
    _check(stage.kv_tokens >= 1, f"The KV memory of {name} must hold at least one token.")
    _check(stage.replay_log_bytes >= 0, f"The replay log of {name} cannot be less than nothing.")
    _check(
        stage.upload_mbps is None or 0 < stage.upload_mbps < math.inf,
        f"The upload of {name} must be above 0 Mbps.",
    )
    _check(
        all(a[0] < b[0] for a, b in pairwise(stage.after_idle))
        and all(0 <= part < math.inf for pair in stage.after_idle for part in pair),
        f"Idle times of {name} must rise, and cost 0 s or more.",
    )


def _check_link(name: str, link: LinkSpec) -> None:
    _check(
        0 < link.mbps < math.inf,
        f"The rate of {name} must be above 0 Mbps, got {link.mbps:g}.",
    )
    _check_delay(f"the delay of {name}", link.one_way_s)
    _check_delay(f"the jitter of {name}", link.jitter_s)
    _check(0 <= link.loss < 1, f"The loss of {name} must be a share below 1, got {link.loss:g}.")
    for change in link.changes:
        _check(
            0 <= change.mbps < math.inf and 0 <= change.at_s < math.inf,
            f"A change of {name} needs a time and a rate of at least 0.",
        )
        _check_delay(f"the delay of {name}", change.one_way_s)
    _check(
        all(a.at_s < b.at_s for a, b in pairwise(link.changes)),
        f"The changes of {name} must be in order of time.",
    )


def _check_system(system: SystemSpec) -> None:
    _check(
        system.policy in POLICIES,
        f"There is no policy {system.policy!r}: take one of {', '.join(POLICIES)}.",
    )
    _check(
        system.codec in CODEC_RATIO,
        f"The simulator cannot pack activations as {system.codec!r}: take one of "
        f"{', '.join(name for name in CODEC_CHOICES if name in CODEC_RATIO)}.",
    )
    _check(
        system.link_model in LINK_MODELS,
        f"There is no link model {system.link_model!r}: take one of {', '.join(LINK_MODELS)}.",
    )
    _check(
        system.micro_batches is None or 1 <= system.micro_batches <= MICRO_BATCH_COUNT_MAX,
        f"Micro-batches must be 1 to {MICRO_BATCH_COUNT_MAX}, got {system.micro_batches}.",
    )
    _check(
        system.span_tokens is None or system.span_tokens >= 1, "A span holds at least one token."
    )
    _check(system.tensors_per_hop >= 1, "At least one tensor crosses a hop.")
    _check_delay("the delays of a message", system.hop_one_way_delays)
    _check_delay("the software's time per hop", system.hop_software_s)
    _check_delay("a draft step", system.drafter.step_s)
    _check(
        0 <= system.drafter.width <= DRAFTS_MAX and 0 <= system.drafter.acceptance <= 1,
        f"A drafter has at most {DRAFTS_MAX} drafts, each right with a chance of 0 to 1.",
    )


def _check_times(scenario: Scenario) -> None:
    _check(0 < scenario.duration_s < math.inf, "The duration must be above 0 s.")
    _check(
        0 <= scenario.warmup_s < scenario.duration_s,
        f"A warm-up of {scenario.warmup_s:g} s leaves nothing of {scenario.duration_s:g} s: "
        "shorten it.",
    )
    _check_delay("the time to drain", scenario.drain_s)
    _check_delay("the time to notice a loss", scenario.detect_s)


def _check_arrivals(scenario: Scenario) -> None:
    asked = bool(scenario.arrivals or scenario.sessions)
    _check(asked, "Nobody asks for anything: raise the rate or the duration.")
    before = RequestArrival(0.0, 1, 1)
    for arrival in scenario.arrivals:
        _check(
            before.at_s <= arrival.at_s < math.inf,
            f"Requests must be in order of time: {arrival.at_s:g} s follows {before.at_s:g} s.",
        )
        _check(
            arrival.input_tokens >= 1 and arrival.output_tokens >= 1,
            f"The request at {arrival.at_s:g} s needs at least one token in and one out.",
        )
        before = arrival
    _check(scenario.sessions_at_once >= 1, "At least one session is replayed at a time.")
    _check((scenario.requests_at_once_max or 1) >= 1, "At least one request may be under way.")


def _check_delay(name: str, seconds: float) -> None:
    _check(0 <= seconds < math.inf, f"{name[0].upper()}{name[1:]} must be 0 or more and finite.")


def _check(holds: bool, sentence: str) -> None:
    if not holds:
        raise UserError(sentence)
