"""Forecast of a ring from the facts, for any order and any split.

Decode is predicted by the head's own cost model (`round_model`), with the number of micro-batches
that makes a cycle shortest; where prompts and decode together ask more of a device or a link than
a cycle has time for, the cycle is as long as they take. So a forecast and the plan that a search
makes (`fit`) are the same arithmetic, and what the head later measures can be held against it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from molink_scheduler.head.prompt_queue import SPAN_TOKENS
from molink_scheduler.kv.snapshots import snapshot_slots
from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement.drafted import DraftForecast, DraftingRing
from molink_scheduler.placement.facts import STATE_SLOTS_MAX, Goal, Network, NodeFacts
from molink_scheduler.placement.fit import MICRO_BATCHES_PER_STAGE, stage_works, ttft_s
from molink_scheduler.placement.problem import OrderCosts, Problem
from molink_scheduler.placement.split import ROUNDING, Counts
from molink_scheduler.timing.round_model import HopCost, RoundModel, StageCost

BUSY_SHARE = 0.8
"""How busy a device or link is that is called the bottleneck; below it, delay is."""


CROWDED_ROUNDS = 12
"""Halvings of the distance to the time per token that brings itself about: to a part in 4,000."""


@dataclass(frozen=True, slots=True)
class StageForecast:
    """Layers, memory and busy shares of one stage at the load of the forecast."""

    node_id: str
    name: str
    layers: tuple[int, int]
    """Layers [start, end) of the stage."""
    weights_bytes: int
    kv_tokens: int
    """Tokens for which the memory lent suffices beside states, or that a stage offers at most."""
    memory_bytes: int
    """Memory lent."""
    used_bytes: int
    """Memory taken by weights and by the KV and states of the users of the forecast."""
    step_s: float
    """Seconds of one micro-batch's decode step."""
    busy_share: float
    """Share of the time that the device computes, decode and prompts."""
    link_busy_share: float
    """Share of the time that the link to the next stage sends."""
    fetched_bytes: int = 0
    """Weights as they are downloaded: of quantized ones the file and the memory differ."""
    fetch_s: float | None = None
    """Seconds of that download on the node's line; None: its rate is not known."""
    state_slots: int | None = None
    """Requests whose states fit beside that KV; None: its layers keep none."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Users, times and bottleneck of a ring at one load."""

    users: int
    """Served at once: the most within the bound unless a number was asked for."""
    users_memory: int
    """Users for whom the smallest memory suffices for KV and states."""
    micro_batches: int
    tpot_s: float
    """Time per token at that load."""
    tpot_alone_s: float
    """Time per token of a single user, whose prompt is done."""
    ttft_s: float
    """Time to first token of a typical prompt on an idle ring."""
    tokens_per_s: float
    """Tokens per second of all users together."""
    delay_s: float
    """Seconds of each token that the links take whatever the load."""
    bottleneck: str
    stages: tuple[StageForecast, ...]
    drafts: DraftForecast | None = None
    """What the ring gives with drafts; None: nothing drafts of which more than a copy is known."""


def forecast(
    model: ModelCost,
    nodes: Sequence[NodeFacts],
    counts: Sequence[int],
    network: Network,
    goal: Goal,
    users: int | None = None,
) -> Forecast:
    """Forecast a ring of these nodes, head first, with so many layers each.

    With `users` the load is so many; without, the most within the goal's bound. Raises ValueError
    when the layers are not those of the model, or some that stay together are parted.
    """
    if len(counts) != len(nodes) or min(counts) < 1 or sum(counts) != model.layers:
        raise ValueError("each node takes a layer or more, all together those of the model")
    if not all(model.may_end[end] for end in accumulate(counts)):
        raise ValueError("layers that stay together are on one stage")
    return _Ring(Problem(model, nodes, network, goal), tuple(counts)).forecast(users)


def crowded_tpot_s(
    model: ModelCost,
    nodes: Sequence[NodeFacts],
    counts: Sequence[int],
    network: Network,
    goal: Goal,
    users: int,
) -> float:
    """Time per token of so many users who ask again at once: the cycle of decode, which goes before
    prompts, and what it waits at each device for the span of a prompt that is under way. Whose
    prompt is read does not decode meanwhile.

    That wait is the mean rest of what is served in a queue whose classes do not interrupt each
    other (Cobham 1954): the share of time that prompts take, times half a span. On a PC that is a
    ring of its own prompts have turns of a step or two: as many wait for theirs, and do not decode,
    as make up for them.
    """
    ring = _Ring(Problem(model, nodes, network, goal), tuple(counts))
    prompt_s = ttft_s(ring.problem, ring.costs, ring.counts)
    rests = SPAN_TOKENS / 2 * sum(row_s**2 for row_s in ring.prompt_row_s)
    tpot_s = ring.decode_s(users)
    if len(counts) == 1:
        return tpot_s
    for _ in range(CROWDED_ROUNDS):
        answer_s = prompt_s + goal.answer_tokens * tpot_s
        decoding = users * goal.answer_tokens * tpot_s / answer_s
        waits_s = users * goal.prompt_tokens / answer_s * rests
        tpot_s = (tpot_s + ring.decode_s(decoding) + waits_s) / 2
    return tpot_s


class _Ring:
    """Cost model of a ring whose split is decided."""

    def __init__(self, problem: Problem, counts: Counts) -> None:
        self.problem, self.counts = problem, counts
        order = tuple(range(len(counts)))
        self.costs = OrderCosts(problem, order)
        self.ends = [0, *accumulate(counts)]
        self.works = stage_works(problem, counts)
        self.wires = [problem.wire_row_s[a][b] for a, b in pairwise(order)]
        self.model = RoundModel(self._stage_costs(), self._hop_costs())
        self.prompt_row_s = [
            work * problem.prefill_s[i] + step_s / SPAN_TOKENS
            for i, work, step_s in zip(order, self.works, self.costs.steps_s, strict=True)
        ]

    def _stage_costs(self) -> tuple[StageCost, ...]:
        nodes, last = self.problem.nodes, len(self.counts) - 1
        return tuple(
            StageCost(
                self.costs.steps_s[place] + work * node.decode_fixed_s,
                work * node.decode_row_s + (node.head_row_s if place == last else 0.0),
            )
            for place, (node, work) in enumerate(zip(nodes, self.works, strict=True))
        )

    def _hop_costs(self) -> tuple[HopCost, ...]:
        delays = self.problem.delay_s
        hops = [HopCost(delays[a][a + 1], wire_s) for a, wire_s in enumerate(self.wires)]
        home = [HopCost(delays[len(self.wires)][0], 0.0)] if self.wires else []
        return (*hops, *home)

    def rooms(self) -> "list[_Room]":
        """Tokens and requests for which each stage has room."""
        return [self._room(place) for place in range(len(self.counts))]

    def _room(self, place: int) -> "_Room":
        start, end = self.ends[place : place + 2]
        node, model, goal = self.problem.nodes[place], self.problem.model, self.problem.goal
        weights = self.problem.bytes_before[end] - self.problem.bytes_before[start]
        free = max(0, self.costs.memory_bytes[place] - weights)
        token = sum(model.kept_of_token[start:end]) * node.kv_scale
        state = sum(model.kept_of_request[start:end]) * node.state_scale
        return _shared_room(free, token, state, goal)

    def cycle(self, users: int) -> tuple[float, int]:
        """Seconds until all users have one more token, and the micro-batches of the shortest."""
        fixed = self.problem.goal.micro_batches
        most = min(users, fixed or MICRO_BATCHES_PER_STAGE * len(self.counts))
        least = 1 if fixed is None else most
        counts = range(max(1, least), max(1, most) + 1)
        return min((self._cycle_s(users, count), count) for count in counts)

    def decode_s(self, users: float) -> float:
        """Seconds of a cycle of decode alone, between those of whole numbers of users."""
        few = max(1, math.floor(users))
        ends = [self.model.cycle_s(one, self.cycle(one)[1]) for one in (few, few + 1)]
        return ends[0] + max(0.0, users - few) * (ends[1] - ends[0])

    def _cycle_s(self, users: int, count: int) -> float:
        # The round model knows decode alone. Decode goes before prompts, so a cycle is as long as
        # it says unless a device or a link has more to do, prompts included, than it lasts.
        together = self.busy_s(users, count) + self.wire_s(users, count)
        return max(self.model.cycle_s(users, count), *together)

    def busy_s(self, users: int, count: int) -> list[float]:
        """Seconds that each device computes in one cycle."""
        rows, prompt_rows = -(-users // count), users * self.problem.goal.prompt_rows_per_token
        return [
            count * (stage.fixed_s + rows * stage.row_s) + prompt_rows * prompt_row_s
            for stage, prompt_row_s in zip(self.model.stages, self.prompt_row_s, strict=True)
        ]

    def wire_s(self, users: int, count: int) -> list[float]:
        """Seconds that each link sends in one cycle."""
        rows = count * -(-users // count) + users * self.problem.goal.prompt_rows_per_token
        return [rows * wire_s for wire_s in self.wires]

    def most_users(self, users_memory: int) -> int:
        """Most users within the bound, by halving: more users never make a cycle shorter."""
        bound_s = self.problem.goal.tpot_s * (1 + 2 * ROUNDING)
        low, high = 0, users_memory
        while low < high:
            middle = (low + high + 1) // 2
            if self.cycle(middle)[0] <= bound_s:
                low = middle
            else:
                high = middle - 1
        return low

    def forecast(self, asked: int | None) -> Forecast:
        """The ring with so many users, or with the most within the bound."""
        rooms = self.rooms()
        users_memory = min(room.users(self.problem.goal) for room in rooms)
        most = self.most_users(users_memory)
        users = most if asked is None else max(0, asked)
        # A ring that serves nobody within the bound is shown with a single user.
        tpot_s, count = self.cycle(max(1, users))
        return Forecast(
            users=users,
            users_memory=users_memory,
            micro_batches=count,
            tpot_s=tpot_s,
            tpot_alone_s=self.model.cycle_s(1, 1),
            ttft_s=ttft_s(self.problem, self.costs, self.counts),
            tokens_per_s=max(1, users) / tpot_s,
            delay_s=self.costs.delay_s,
            bottleneck=(
                self._bottleneck(users, users_memory, (tpot_s, count)) if users else self._slow()
            ),
            stages=self._stages(max(1, users), rooms, (tpot_s, count)),
            drafts=self._drafts(max(1, users), count),
        )

    def _drafts(self, users: int, count: int) -> DraftForecast | None:
        """What drafts bring, each for a layer and the output matrix of the tail, or for all of a
        small model at the head, or of an assistant at the tail; None: there is none."""
        model, head, tail = self.problem.model, self.problem.nodes[0], self.problem.nodes[-1]
        prompt_row_s, layers = list(self.prompt_row_s), model.drafter_layers
        if model.drafts_at_tail:
            row_s, ends = tail.decode_row_s, (tail.head_fixed_s, tail.head_row_s)
            step = StageCost(tail.decode_fixed_s + ends[0], row_s + ends[1])
        elif layers:
            node = tail if model.drafter_at_tail else head
            row_s, step = 0.0, StageCost(layers * node.decode_fixed_s, layers * node.decode_row_s)
            if not model.drafter_at_tail:  # An assistant computes nothing of prompts.
                prompt_row_s[0] += layers * self.problem.prefill_s[0]
        else:
            return None
        return DraftingRing(
            costs=self.model,
            step=step,
            row_s=row_s,
            prompt_row_s=prompt_row_s,
            wire_row_s=self.wires,
            prompt_rows_per_token=self.problem.goal.prompt_rows_per_token,
            at_tail=model.drafts_at_tail or model.drafter_at_tail,
        ).forecast(users, count)

    def _stages(
        self, users: int, rooms: "list[_Room]", cycle: tuple[float, int]
    ) -> tuple[StageForecast, ...]:
        cycle_s, count = cycle
        model, rows = self.problem.model, -(-users // count)
        busy = [time / cycle_s for time in self.busy_s(users, count)]
        wires = [time / cycle_s for time in self.wire_s(users, count)] + [0.0]
        weights = [
            model.stage_bytes(start, end, node.tables_scale)
            for node, (start, end) in zip(self.problem.nodes, pairwise(self.ends), strict=True)
        ]
        fetched = [model.fetched_bytes(start, end) for start, end in pairwise(self.ends)]
        return tuple(
            StageForecast(
                node_id=node.id,
                name=node.name,
                layers=(self.ends[place], self.ends[place + 1]),
                weights_bytes=weights[place],
                kv_tokens=rooms[place].tokens,
                state_slots=rooms[place].slots,
                memory_bytes=node.memory_bytes,
                used_bytes=weights[place] + users * self._user_bytes(place),
                fetched_bytes=fetched[place],
                fetch_s=fetched[place] / rate if (rate := node.download_bytes_per_s) else None,
                step_s=self.model.stages[place].fixed_s + rows * self.model.stages[place].row_s,
                busy_share=busy[place],
                link_busy_share=wires[place],
            )
            for place, node in enumerate(self.problem.nodes)
        )

    def _user_bytes(self, place: int) -> int:
        before = self.problem.user_bytes_before[place]
        return before[self.ends[place + 1]] - before[self.ends[place]]

    def _bottleneck(self, users: int, users_memory: int, cycle: tuple[float, int]) -> str:
        cycle_s, count = cycle
        names = [node.name for node in self.problem.nodes]
        if users >= users_memory:
            return self._memory_bottleneck(names)
        parts = [
            (time / cycle_s, f"the device of {name}")
            for time, name in zip(self.busy_s(users, count), names, strict=True)
        ]
        for place, time in enumerate(self.wire_s(users, count)):
            what = f"the link from {names[place]} to {names[place + 1]}"
            parts.append((time / cycle_s, what))
        share, what = max(parts)
        if share >= BUSY_SHARE:
            return f"{what}, busy {share:.0%} of the time"
        delay_ms = 1e3 * self.costs.delay_s
        return f"delay: {delay_ms:.0f} ms of every token are links; {what} is busy {share:.0%}"

    def _slow(self) -> str:
        trip_ms, delay_ms = 1e3 * self.model.cycle_s(1, 1), 1e3 * self.costs.delay_s
        return f"the way round: {delay_ms:.0f} of a lonely token's {trip_ms:.0f} ms are links"

    def _memory_bottleneck(self, names: list[str]) -> str:
        goal, rooms = self.problem.goal, self.rooms()
        place = min(range(len(rooms)), key=lambda one: (rooms[one].users(goal), rooms[one].tokens))
        least = rooms[place]
        if least.slots is not None and least.slots <= least.tokens // goal.context_tokens:
            if least.slots >= STATE_SLOTS_MAX - snapshot_slots(STATE_SLOTS_MAX):
                return f"the states of {least.slots} requests that a stage holds at most"
            return f"the memory of {names[place]}, full with the states of {least.slots} requests"
        if least.tokens >= goal.kv_tokens_max:
            return f"the {least.tokens:,} tokens of KV that a stage offers at most"
        return f"the memory of {names[place]}, full with {least.tokens:,} tokens"


class _Room(NamedTuple):
    """Room that a stage has for what it keeps of requests."""

    tokens: int
    """Tokens of KV that fit."""
    slots: int | None
    """Requests whose states fit beside that; None: there are none."""

    def users(self, goal: Goal) -> int:
        """Users whose KV and states fit."""
        users = self.tokens // goal.context_tokens
        return users if self.slots is None else min(users, self.slots)


def _shared_room(free: int, token: float, state: float, goal: Goal) -> _Room:
    """Room in `free` bytes for tokens of so many bytes and states of so many: as many states as
    find room with the KV of their requests, KV in the rest, and again states in what that cannot
    use. Some of these are for snapshots."""
    most = goal.kv_tokens_max
    if not state:
        return _Room(min(most, int(free / token)), None)
    slots = min(STATE_SLOTS_MAX, int(free / (state + goal.context_tokens * token)))
    tokens = min(most, int((free - slots * state) / token)) if token else most
    slots = min(STATE_SLOTS_MAX, int((free - tokens * token) / state))
    return _Room(tokens, slots - snapshot_slots(slots))
