"""Decision whether another plan is worth its change.

Newcomers fetch and load their layers while the present plan serves. A node that serves already
begins when its ring has ended: so all users of a ring whose stages change wait while the slowest of
its nodes fetches what it lacks and loads, and then while the KV of their contexts, which is lost,
is computed once more. Against that stands what the new plan serves more, for as long as it can be
expected to last: PCs come and go, so nothing counts that lies beyond a horizon. Both are counted in
seconds of users, and a change needs a margin, because forecasts err and a cluster that keeps
changing serves nobody.

Where as many users are served as before, a change must shorten what they wait for by a good deal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement.evaluate import Forecast, StageForecast
from molink_scheduler.placement.plan import Plan

HORIZON_S = 1800.0
"""How long a plan counts: half an hour, about as long as a volunteer's PC stays as it is."""

GAIN_MIN = 0.1
"""Share of what the present plan serves within the horizon that a change must bring."""

FASTER_MIN = 0.2
"""Share of the time per token or to the first token that a change must save where it brings no
users."""

PAUSE_SHARE_MAX = 0.01
"""Share of all that is served within the horizon that a merely faster plan may cost."""

LOAD_BYTES_PER_S = 500e6
"""Rate from a PC's SSD into its device; unpacking takes more than reading."""

DOWNLOAD_FLOOR_BYTES_PER_S = 12_500.0
"""Less is no rate: 0.1 Mbps, as for links."""


@dataclass(frozen=True, slots=True)
class ChangeCost:
    """Pause and preparation of a change of plan."""

    affected_users: int
    """Users on rings of the present plan that do not stay as they are."""
    pause_s: float
    """Seconds without service, for those: who serves now fetches and loads, contexts are computed
    again."""
    prepare_s: float = 0.0
    """Seconds until newcomers have fetched and loaded; the present plan serves meanwhile."""


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
    kept_tokens: Sequence[int] = (),
) -> ChangeCost:
    """Cost of the step from one plan to the other; `kept_tokens`: of how many tokens each present
    ring holds KV of live requests.

    A node has the layers of the present plan and downloads all others. One without a rate downloads
    for ever, so a plan that needs it is never worth its change.
    """
    stay = {_shape(ring) for ring in present.rings} & {_shape(ring) for ring in new.rings}
    coming = [ring for ring in new.rings if _shape(ring) not in stay]
    has, pauses, preparations = present.layers_of, [0.0], [0.0]
    for stage in (one for ring in coming for one in ring.stages):
        rate = download_bytes_per_s.get(stage.node_id, 0.0)
        ready_s = _fetch_s(stage, has.get(stage.node_id, (0, 0)), model, rate)
        ready_s += stage.weights_bytes / LOAD_BYTES_PER_S
        (pauses if stage.node_id in has else preparations).append(ready_s)
    changed = [_shape(ring) not in stay for ring in present.rings]
    affected = sum(ring.users for ring, one in zip(present.rings, changed, strict=True) if one)
    lost_tokens = sum(tokens for tokens, one in zip(kept_tokens, changed, strict=False) if one)
    again_s = _again_s(coming, lost_tokens, new.goal.prompt_tokens)
    return ChangeCost(affected, max(pauses) + again_s if any(changed) else 0.0, max(preparations))


def _fetch_s(
    stage: StageForecast, has: tuple[int, int], model: ModelCost, bytes_per_s: float
) -> float:
    """How long a node that has some layers downloads those that its stage also needs."""
    needed = range(*stage.layers)
    missing = sum(model.fetched_layers[layer] for layer in needed if layer not in range(*has))
    if not missing:
        return 0.0
    return inf if bytes_per_s < DOWNLOAD_FLOOR_BYTES_PER_S else missing / bytes_per_s


def _again_s(coming: Sequence[Forecast], lost_tokens: int, prompt_tokens: int) -> float:
    """How long users wait for their contexts to be computed anew, in the mean: they are computed
    one after the other, so that half of them all are before one's own; a prompt at least."""
    if not coming:
        return 0.0
    ttft_s = max(ring.ttft_s for ring in coming)
    return max(ttft_s, lost_tokens / 2 / len(coming) * ttft_s / max(1, prompt_tokens))


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
            f"{GAIN_MIN:.0%} over the next half hour, its pause, loads and downloads taken off",
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
