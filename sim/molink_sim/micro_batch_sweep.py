"""Sweep for the point where extra micro-batches stop paying, over delays, stage times and users.

Every ring is simulated with every number of micro-batches, and with the automatic one. A `Finding`
is how many suffice on a ring for so many users, and what they gain; sufficient is the smallest
number whose time per token is within 2 % of the best.

Users are streams that decode all the time: short prompts at the beginning, then nothing but tokens.
A token's time is taken while all of them decode and, where the number chooses itself, after it had
time to do so. Prompts in between would add their own delay to every number alike, and make the
device's time dearer; what that does is another question (docs/scheduling.md).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from molink.errors import UserError
from molink_scheduler.batch import DECODE, MICRO_BATCH_COUNT_MAX, BatchClass
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.timing.round_model import HopCost, RoundModel, StageCost
from molink_sim.even_ring import even_ring
from molink_sim.report.micro_batches import fewest_near_best
from molink_sim.report.summary import Parameter, Run, Sweep
from molink_sim.report.tables import Table
from molink_sim.scenario import LinkSpec, RequestArrival, RingSpec, Scenario, StepCost, SystemSpec
from molink_sim.simulate import World

FIGURE = "tpot_s.mean"

VALUES_MAX = 8
"""Values of one parameter: more panels cannot be read side by side."""

USERS_MAX = 512
"""Beyond it the KV memory of home GPUs is full anyhow."""

SLOWDOWN_MAX = 1000.0
"""An RTX 4090 a thousand times as slow is slower than any PC that anybody would bring."""

LATENCY_MS_MAX = 1000.0
"""Largest delay: half of the way to a geostationary satellite and back, four times."""

PROMPT_TOKENS = 32
"""Tokens of a prompt, few, so that all users decode soon."""

SETTLE_TOKENS = 200
"""Tokens of each user before anything is measured: a number that chooses itself judges after 32
trips of a micro-batch and may change twice. Given numbers wait as long, for the same contexts."""

MEASURED_TOKENS = 40
"""Tokens of each user that are measured: rounds hardly differ from each other."""

ANSWER_TOKENS_MAX = 4096
ANSWER_TOKENS_MIN = 2 * (SETTLE_TOKENS + MEASURED_TOKENS)
"""Least tokens of an answer, as long as memory allows: else the first user ends before the last is
measured."""

CHECK_INTERVAL_S = 1.0
"""How often to check whether all are measured."""

SIMULATED_S_MAX = 24 * 3600.0
"""A ring that needs longer for 240 tokens serves nobody."""

MILLISECONDS, BYTES_PER_S_OF_MBPS = 1e-3, 125_000


@dataclass(frozen=True, slots=True)
class SweepSetting:
    """Rings, users and numbers of micro-batches of a sweep. Raises UserError for nonsense."""

    model: str = "qwen-7b"
    gpu: str = "rtx4090"
    stages: int = 3
    bandwidth_mbps: float = 100.0
    latencies_ms: tuple[float, ...] = (5.0, 15.0, 30.0, 50.0)
    """One-way delays of every link."""
    slowdowns: tuple[float, ...] = (1.0, 4.0, 16.0)
    """How many times as long as the GPU's are the steps of every stage."""
    users: tuple[int, ...] = (2, 8, 32, 128)
    """How many get answers at the same time."""
    micro_batches_max: int | None = None
    """Most micro-batches; None: one more than twice the stages, so that the last step shows that no
    more is needed."""

    def __post_init__(self) -> None:
        _check_values("latencies", self.latencies_ms, 0.0, LATENCY_MS_MAX)
        _check_values("slowdowns", self.slowdowns, 1 / SLOWDOWN_MAX, SLOWDOWN_MAX)
        _check_values("users", self.users, 1, USERS_MAX)
        if self.stages < 1:
            raise UserError(f"A ring has 1 or more stages, got --stages {self.stages}.")
        if not 1 <= self.counts_max <= MICRO_BATCH_COUNT_MAX:
            raise UserError(
                f"A survey tries up to 1 to {MICRO_BATCH_COUNT_MAX} micro-batches, "
                f"got {self.counts_max}: choose fewer with --micro-batches-max."
            )

    @property
    def counts_max(self) -> int:
        """The largest number of micro-batches that is tried."""
        return 2 * self.stages + 1 if self.micro_batches_max is None else self.micro_batches_max

    def counts(self, users: int) -> range:
        """Numbers of micro-batches for so many users: with more than users some stay empty."""
        return range(1, min(users, self.counts_max) + 1)

    @property
    def run_count(self) -> int:
        """Number of the sweep's runs; each number of users has one with the automatic number."""
        of_a_ring = sum(len(self.counts(users)) + 1 for users in self.users)
        return len(self.slowdowns) * len(self.latencies_ms) * of_a_ring


def _check_values(name: str, values: tuple[float, ...], low: float, high: float) -> None:
    fits = all(math.isfinite(value) and low <= value <= high for value in values)
    if not (1 <= len(values) <= VALUES_MAX and len(set(values)) == len(values) and fits):
        raise UserError(
            f"A survey takes 1 to {VALUES_MAX} different {name} of {low:g} to {high:g}: "
            f"got {', '.join(f'{value:g}' for value in values) or 'none'}."
        )


@dataclass(frozen=True, slots=True)
class _Slowed:
    """Step cost that is a multiple of another one."""

    cost: StepCost
    slowdown: float

    def step_s(self, batch_class: BatchClass, rows: int, kv_tokens: int, sequences: int) -> float:
        return self.slowdown * self.cost.step_s(batch_class, rows, kv_tokens, sequences)


def simulate_sweep(setting: SweepSetting, done: Callable[[], None] = lambda: None) -> Sweep:
    """A run for each delay, stage time, number of users and of micro-batches.

    Parameters are `rtt_ms`, `stage_ms` (one user's decode step on the slowest stage), `users` and
    `micro_batches`; a run with the automatic number has `choice` = `auto` in place of the last. The
    summary holds `tpot_s.mean` and the number that was in use at the end, `micro_batches`.

    `done` is called after each run. Raises UserError for a model, GPU or ring that cannot be, and
    when it holds too few users.
    """
    rings, runs = list(_rings(setting)), []
    _answer_tokens(rings[0][0], max(setting.users))
    for ring, where in rings:
        for run in _runs(setting, ring, where):
            runs.append(run)
            done()
    return Sweep(runs)


def _rings(setting: SweepSetting) -> Iterator[tuple[RingSpec, dict[str, Parameter]]]:
    for slowdown in setting.slowdowns:
        for latency_ms in setting.latencies_ms:
            link = LinkSpec(setting.bandwidth_mbps, latency_ms * MILLISECONDS)
            ring = even_ring(setting.model, setting.gpu, setting.stages, link)
            stages = [replace(one, cost=_Slowed(one.cost, slowdown)) for one in ring.stages]
            step_s = max(stage.cost.step_s(DECODE, 1, PROMPT_TOKENS, 1) for stage in stages)
            stage_ms = round(step_s / MILLISECONDS, 1)
            slowed = replace(ring, stages=tuple(stages))
            yield slowed, {"rtt_ms": 2 * latency_ms, "stage_ms": stage_ms}


def _runs(setting: SweepSetting, ring: RingSpec, where: Mapping[str, Parameter]) -> Iterator[Run]:
    for users in setting.users:
        for count in setting.counts(users):
            found = _run(ring, users, count)
            yield Run({**where, "users": users, "micro_batches": count}, found)
        yield Run({**where, "users": users, "choice": "auto"}, _run(ring, users, None))


def _run(ring: RingSpec, users: int, count: int | None) -> dict[str, object]:
    scenario = Scenario(
        rings=(ring,),
        arrivals=[RequestArrival(0.0, PROMPT_TOKENS, _answer_tokens(ring, users))] * users,
        system=SystemSpec(micro_batches=count),
        duration_s=SIMULATED_S_MAX,
    )
    world = World(scenario)
    tpot_s = _tpot_s(_token_times(world, users))
    found: dict[str, object] = {"tpot_s": {"mean": tpot_s}, "micro_batches": _count_at_end(world)}
    return found if count is None else found | {"model_s": modelled_s(ring, users, count)}


def modelled_s(ring: RingSpec, users: int, count: int) -> float:
    """Seconds of a token by the head's own model, added up from profiles of stages and links before
    anything is measured: each stage's line through one row and a micro-batch's rows, each link's
    delay and rate."""
    rows, context = -(-users // count), PROMPT_TOKENS + SETTLE_TOKENS + MEASURED_TOKENS // 2
    stages = tuple(_profiled(stage.cost, rows, context) for stage in ring.stages)
    rates = [link.mbps * BYTES_PER_S_OF_MBPS for link in ring.links]
    row_s = [ring.row_bytes / rate for rate in rates[:-1]] + [0.0]
    hops = tuple(HopCost(link.one_way_s, s) for link, s in zip(ring.links, row_s, strict=True))
    return RoundModel(stages, hops).cycle_s(users, count)


def _profiled(cost: StepCost, rows: int, context: int) -> StageCost:
    one_s, all_s = (cost.step_s(DECODE, n, n * context, n) for n in (1, rows))
    row_s = (all_s - one_s) / (rows - 1) if rows > 1 else 0.0
    return StageCost(one_s - row_s, row_s)


def _answer_tokens(ring: RingSpec, users: int) -> int:
    """There must be room for all users, or some would wait and not decode."""
    holds, least = min(stage.kv_tokens for stage in ring.stages), PROMPT_TOKENS + ANSWER_TOKENS_MIN
    if users * least > holds:
        raise UserError(
            f"{users} users need {users * least:,} tokens of KV, the ring holds {holds:,}: "
            f"survey up to {holds // least} users, or more stages."
        )
    return min(ANSWER_TOKENS_MAX, holds // users - PROMPT_TOKENS)


def _token_times(world: World, users: int) -> list[list[float]]:
    """Token times of each user, once all have as many tokens as are wanted."""
    requests, now = world.coordinator.requests, 0.0
    while now < SIMULATED_S_MAX and not any(request.finished for request in requests):
        now += CHECK_INTERVAL_S
        world.clock.run(now)
        fewest = min((len(request.token_times_s) for request in requests), default=0)
        if len(requests) == users and fewest >= SETTLE_TOKENS + MEASURED_TOKENS:
            return [request.token_times_s for request in requests]
    raise UserError(
        f"Of {users} users the first ends before the last prompt is through: "
        "survey fewer users, or faster links."
    )


def _tpot_s(times: list[list[float]]) -> float:
    """Mean over users, while all of them have settled."""
    all_from, all_until = max(one[SETTLE_TOKENS] for one in times), min(one[-1] for one in times)
    shared = [[at for at in one if all_from <= at <= all_until] for one in times]
    return sum((one[-1] - one[0]) / (len(one) - 1) for one in shared) / len(shared)


def _count_at_end(world: World) -> int:
    head = world.rings[0].stages[0].core.source
    assert isinstance(head, HeadScheduler)
    return head.micro_batches.count


@dataclass(frozen=True, slots=True)
class Finding:
    """Numbers of micro-batches on one ring with so many users; times are seconds per token."""

    rtt_ms: float
    stage_ms: float
    users: int
    sufficient: int
    one_s: float
    """Time with one micro-batch."""
    stages_s: float
    """Time with as many as stages, or as users if those are fewer."""
    sufficient_s: float
    best_s: float
    auto: int
    """The number that the core had chosen at the end."""
    auto_s: float
    model_off: float
    """What a token takes by the model over what it took, less one: the farthest of all numbers."""


def findings(sweep: Sweep, stages: int) -> list[Finding]:
    """Findings in the order in which rings and users were simulated."""
    auto = [run for run in sweep.runs if run.parameters.get("choice") == "auto"]
    return [
        _finding(
            sweep.only(**{name: run.parameters[name] for name in ("rtt_ms", "stage_ms", "users")}),
            run.figure(FIGURE) or 0.0,
            int(run.figure("micro_batches") or 0),
            stages,
        )
        for run in auto
    ]


def _finding(runs: Sweep, auto_s: float, auto: int, stages: int) -> Finding:
    points = runs.line("micro_batches", FIGURE)
    chosen = fewest_near_best(points)
    parameters = runs.runs[0].parameters
    return Finding(
        rtt_ms=float(parameters["rtt_ms"]),
        stage_ms=float(parameters["stage_ms"]),
        users=int(parameters["users"]),
        sufficient=int(chosen.x),
        one_s=points[0].mean,
        stages_s=points[min(stages, len(points)) - 1].mean,
        sufficient_s=chosen.mean,
        best_s=min(point.mean for point in points),
        auto=auto,
        auto_s=auto_s,
        model_off=max((_model_off(run) for run in runs.runs if "model_s" in run.summary), key=abs),
    )


def _model_off(run: Run) -> float:
    return (run.figure("model_s") or 0.0) / (run.figure(FIGURE) or 1.0) - 1


def findings_table(found: Sequence[Finding], stages: int) -> Table:
    """Table of milliseconds per token, one row a finding."""
    head = [
        "stage, ms",
        "RTT, ms",
        "users",
        "enough",
        "1",
        f"{stages}",
        "enough",
        "auto",
        "auto over best",
        "model off",
    ]
    rows = [
        [
            f"{one.stage_ms:g}",
            f"{one.rtt_ms:g}",
            str(one.users),
            str(one.sufficient),
            *(_milliseconds(s) for s in (one.one_s, one.stages_s, one.sufficient_s, one.auto_s)),
            f"{one.auto_s / one.best_s - 1:+.0%}",
            f"{one.model_off:+.0%}",
        ]
        for one in found
    ]
    return Table("Milliseconds per token with so many micro-batches", head, rows)


def sweep_json(setting: SweepSetting, sweep: Sweep) -> dict[str, Any]:
    """Setting, findings and runs, ready for `to_json`."""
    found = findings(sweep, setting.stages)
    return {
        "setting": asdict(setting),
        "findings": [_as_dict(one) for one in found],
        "runs": sweep.as_json(),
    }


def _as_dict(one: Finding) -> dict[str, Any]:
    """The finding under the keys of the JSON file."""
    keys = {"sufficient": "enough", "sufficient_s": "enough_s"}
    return {keys.get(key, key): value for key, value in asdict(one).items()}


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}"
