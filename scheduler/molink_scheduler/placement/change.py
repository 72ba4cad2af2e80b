"""Is another plan worth its change?

All users of a ring whose stages change wait while weights are loaded and their prompts are
computed once more, and before that the layers have to be downloaded. Against that stands what the
new plan serves more, for as long as it can be expected to last: PCs come and go, so nothing counts
that lies beyond a horizon. Both are counted in seconds of users, and a change needs a margin,
because forecasts err and a cluster that keeps changing serves nobody.

Where as many users are served as before, a change must shorten what they wait for by a good deal.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from molink_scheduler.placement.evaluate import Forecast
from molink_scheduler.placement.facts import ModelCost
from molink_scheduler.placement.plan import Plan

__all__ = ["ChangeCost", "Decision", "change_cost", "worth_changing"]

HORIZON_S = 1800.0
"""How long a plan counts: half an hour, about as long as a volunteer's PC stays as it is."""

GAIN_MIN = 0.1
"""Share of what the present plan serves within the horizon that a change must bring."""

FASTER_MIN = 0.2
"""Share of the time per token or to the first token that a change must save where it brings no
users."""

PAUSE_SHARE_MAX = 0.01
"""Of all that is served within the horizon, what a merely faster plan may cost."""

LOAD_BYTES_PER_S = 500e6
"""From a PC's SSD into its device; unpacking takes more than reading."""

DOWNLOAD_FLOOR_BYTES_PER_S = 12_500.0
"""Less is no rate: 0.1 Mbps, as for links."""


@dataclass(frozen=True, slots=True)
class ChangeCost:
    """Pause, preparation and downloads of a change of plan."""

    affected_users: int
    """Users on rings of the present plan that do not stay as they are."""
    pause_s: float
    """Seconds without service, for those."""
    prepare_s: float = 0.0
    """Seconds of downloads before the change can be made; the present plan serves meanwhile."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to change the plan, and a sentence that says why."""

    change: bool
    sentence: str
    """Reason, for the log and for GET /cluster."""


def change_cost(
    present: Plan,
    new: Plan,
    model: ModelCost,
    download_bytes_per_s: Mapping[str, float],
) -> ChangeCost:
    """Cost of the step from one plan to the other.

    A node has the layers of the present plan and downloads all others. One without a rate downloads
    for ever, so a plan that needs it is never worth its change.
    """
    stay = {_shape(ring) for ring in present.rings} & {_shape(ring) for ring in new.rings}
    loads, slowest_s = [0], 0.0
    for stage in (one for ring in new.rings if _shape(ring) not in stay for one in ring.stages):
        start, end = stage.layers
        has = range(*present.layers_of.get(stage.node_id, (0, 0)))
        missing = sum(model.fetched_layers[n] for n in range(start, end) if n not in has)
        rate = download_bytes_per_s.get(stage.node_id, 0.0)
        if missing:
            slow = rate < DOWNLOAD_FLOOR_BYTES_PER_S
            slowest_s = max(slowest_s, inf if slow else missing / rate)
        loads.append(stage.weights_bytes)
    changed = [ring for ring in present.rings if _shape(ring) not in stay]
    affected = sum(ring.users for ring in changed)
    again_s = max([ring.ttft_s for ring in new.rings], default=0.0)
    pause_s = max(loads) / LOAD_BYTES_PER_S + again_s if changed else 0.0
    return ChangeCost(affected, pause_s, slowest_s)


def _shape(ring: Forecast) -> tuple[tuple[str, tuple[int, int]], ...]:
    return tuple((stage.node_id, stage.layers) for stage in ring.stages)


def worth_changing(present: Plan, new: Plan, cost: ChangeCost) -> Decision:
    """Whether to change from the present plan to the new one."""
    if not present.rings:
        return Decision(True, f"nobody is served now, and {_users(new)} could be")
    if {_shape(ring) for ring in present.rings} == {_shape(ring) for ring in new.rings}:
        return Decision(False, "the present plan is still the best one known")
    lasts_s = max(0.0, HORIZON_S - cost.prepare_s - cost.pause_s)
    gained = (new.users - present.users) * lasts_s
    lost = min(cost.affected_users, present.users) * min(cost.pause_s, HORIZON_S)
    served = present.users * HORIZON_S
    return _decided(present, new, gained - lost, served, lost, lasts_s / HORIZON_S)


def _decided(
    present: Plan, new: Plan, net: float, served: float, lost: float, lasts_share: float
) -> Decision:
    if net > 0 and net >= GAIN_MIN * served:
        more = new.users - present.users
        return Decision(
            True, f"{_users(new)} instead of {present.users} ({more:+d}) outweigh the pause"
        )
    faster = _faster(present, new)
    cheap = lost <= PAUSE_SHARE_MAX * served
    if new.users >= present.users and faster * lasts_share >= FASTER_MIN and cheap:
        return Decision(True, f"no fewer users wait {faster:.0%} less")
    if new.users > present.users:
        return Decision(
            False,
            f"{new.users - present.users} users more are not worth the change: less than "
            f"{GAIN_MIN:.0%} over the next half hour, its pause and downloads taken off",
        )
    return Decision(False, f"it would serve {_users(new)}, the present plan {present.users}")


def _faster(present: Plan, new: Plan) -> float:
    """Share of the wait that the new plan saves: of the first token, or of each where none is
    within the bound."""
    if present.users == 0 and new.users == 0:
        before, after = (min(r.tpot_alone_s for r in plan.rings) for plan in (present, new))
    else:
        before, after = present.ttft_s, new.ttft_s
    return 1 - after / before if before > 0 else 0.0


def _users(plan: Plan) -> str:
    return f"{plan.users} users" if plan.users != 1 else "1 user"
