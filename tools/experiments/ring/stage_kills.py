"""A stage is killed while users read: for how long do answers stand still, and are they exact?

    python -m tools.experiments.ring.stage_kills MODEL --out DIR

Each stage is killed in turn, all users' answers under way: where its own node loads it again, in
the process that waits there; where a standby holds its layers; where that standby is a shadow,
which holds KV too; and where a neighbour takes them beside its own: there a stage is killed twice
within a minute, after which its own node does not load it again, and the second pause counts. Half
of the users are greedy, half seeded; every answer is compared with that to the same request with
nothing killed. A pause is the longest time between two tokens of a user from the kill on. The
cluster's own events split it: detection, from the kill to the loss that was noted; joining, until
all stages are in the next epoch, and the part of that which was loading; lag, the rest: what is
computed again, and the first token. About two minutes for each condition and round.

With `--drafter none --drafter DRAFTER` all of that is done without drafts and with them in turn,
and answers must be the same; `--anytime` kills at a seeded place of the answers, so that a kill
meets any message of a round.
"""

import asyncio
import itertools
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click
import psutil

from molink.bench.served_ring import ServedRing, serve_ring
from molink.errors import UserError
from molink.workload.figures import percentile
from tools.experiments.harness.experiment import (
    Condition,
    Figures,
    Measured,
    Setup,
    in_turn,
    markdown_table,
    ring_experiment,
    show,
    write_results,
)

__all__ = ["main"]

WARM_UP_TOKENS = (64, 8)
BEFORE_TOKENS = 10
"""Of every answer, when the stage is killed."""

BESIDE = "what a neighbour holds"

WAYS = ("its own node", "a standby", "a shadow standby", BESIDE)
"""What a ring goes on with."""

SETTLED_S = 20.0
"""Before each kill: by then a process waits that has imported torch, and standbys hold all."""

RESUMED = re.compile(
    r"goes on ([\d.]+) s after a loss, ([\d.]+) of them to load, .* (\d+) tokens behind"
)


@dataclass(slots=True)
class Answer:
    """Tokens of one user, and when each came."""

    tokens: list[int] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)

    def pause_s(self, killed_at: float) -> float:
        """The longest time between two tokens that does not end before the kill."""
        pairs = zip(self.at_s, self.at_s[1:], strict=False)
        return max(after - before for before, after in pairs if after > killed_at)


class Moment(NamedTuple):
    """Moment of a kill, on two clocks."""

    at_s: float
    """As answers are timed."""
    unix_s: float
    """As the cluster's events are."""


@dataclass(frozen=True, slots=True)
class Kill:
    """What one kill cost all users; seconds."""

    place: int
    pauses_s: list[float]
    detection_s: float
    joining_s: float
    loading_s: float
    """Of joining."""
    behind_tokens: int
    """That were sent again."""


@ring_experiment(link="100:30")
@click.option("--nodes", default=4, show_default=True, help="Stages, each of which is killed.")
@click.option("--users", default=4, show_default=True, help="At once.")
@click.option("--tokens", default=60, show_default=True, help="Of each answer.")
@click.option("--only", "ways", multiple=True, type=click.Choice(WAYS), help="Default: all.")
@click.option("--drafter", "drafters", multiple=True, default=("none",), help="One or several.")
@click.option("--anytime", is_flag=True, help="Kill at any token, not behind the tenth.")
def main(
    setup: Setup, ways: Sequence[str], drafters: Sequence[str], anytime: bool, **own: Any
) -> None:
    """Measure the pause of answers when a stage is killed, with and without a standby."""
    conditions = _conditions(str(own["nodes"]), ways or WAYS, drafters)
    plain: dict[int, list[list[int]]] = {}

    async def measure(condition: Condition, number: int) -> Measured:
        options = ("--link", setup.link, "--dtype", "float32", *setup.serve_options)
        options += condition.options
        async with serve_ring(setup.model, options, number, WARM_UP_TOKENS) as ring:
            kills = Kills(ring, own["nodes"], own["users"], own["tokens"], anytime)
            await kills.ask_without()
            if kills.expected != plain.setdefault(number, kills.expected):
                raise UserError(f"an answer of {condition.name} is another one without a kill")
            is_beside = condition.name.startswith(BESIDE)
            found = await (kills.of_neighbours() if is_beside else kills.of_stages())
            return Measured(_figures(found))

    runs = in_turn(conditions, setup.rounds, measure)
    told = {**own, "ways": list(ways), "drafters": list(drafters), "anytime": anytime}
    show(_table(write_results("stage_kills", setup, told, runs)))


def _conditions(every: str, ways: Sequence[str], drafters: Sequence[str]) -> list[Condition]:
    """Each way to go on with each drafter."""
    options = {
        WAYS[0]: ("--nodes", every),
        WAYS[1]: ("--nodes", every, "--standby", every, "--no-shadow"),
        WAYS[2]: ("--nodes", every, "--standby", every),
        BESIDE: ("--nodes", every),
    }
    return [
        Condition(
            way if len(drafters) == 1 else f"{way}, {Path(drafter).name}",
            (*options[way], "--drafter", drafter),
        )
        for way, drafter in itertools.product(ways, drafters)
    ]


@dataclass
class Kills:
    """Kills of one ring's stages under answers, each of which is compared with that to the same
    request with nothing killed."""

    ring: ServedRing
    nodes: int
    users: int
    tokens: int
    anytime: bool
    expected: list[list[int]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.bodies = [_body(self.ring, user, self.tokens) for user in range(self.users)]

    async def ask_without(self) -> None:
        """Have everything answered with nothing killed."""
        _, answers = await self._answers(None)
        self.expected = [one.tokens for one in answers]

    async def of_stages(self) -> list[Kill]:
        """Each stage in turn."""
        kills: list[Kill] = []
        for place in range(self.nodes):
            await asyncio.sleep(SETTLED_S)
            killed, pauses_s = await self._killed(place)
            kills.append(await _kill(self.ring, place, killed.unix_s, pauses_s))
        return kills

    async def of_neighbours(self) -> list[Kill]:
        """One of the middle, the head and the tail, in rings of one place less each."""
        kills: list[Kill] = []
        for place in (1, 0, -1)[: self.nodes - 1]:
            await asyncio.sleep(SETTLED_S)
            before = len((await self.ring.cluster())["stages"])
            await self._killed(place)
            killed, pauses_s = await self._killed(place)
            if len((await self.ring.cluster())["stages"]) != before - 1:
                raise UserError("no neighbour has taken the layers: the PC was too slow for it")
            kills.append(await _kill(self.ring, place, killed.unix_s, pauses_s))
        return kills

    async def _killed(self, place: int) -> tuple[Moment, list[float]]:
        """When the stage at `place` was killed, and each user's pause. Raises UserError where an
        answer is another one."""
        killed, answers = await self._answers(place)
        if [one.tokens for one in answers] != self.expected:
            raise UserError(f"an answer is another one where stage {place} was killed")
        return killed, [one.pause_s(killed.at_s) for one in answers]

    async def _answers(self, place: int | None) -> tuple[Moment, list[Answer]]:
        """All users' answers, and when the stage at `place` was killed while they came."""
        answers, killed = [Answer() for _ in self.bodies], Moment(0.0, 0.0)
        last = max(BEFORE_TOKENS, self.tokens // 2)
        before = self.ring.random.randint(1, last) if self.anytime else BEFORE_TOKENS
        async with asyncio.TaskGroup() as group:
            for body, answer in zip(self.bodies, answers, strict=True):
                group.create_task(_read(self.ring, body, answer))
            if place is not None:
                stage = (await self.ring.cluster())["stages"][place]
                while min(len(one.tokens) for one in answers) < before:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
                killed = Moment(time.perf_counter(), time.time())
                psutil.Process(stage["pid"]).kill()
        return killed, answers


def _body(ring: ServedRing, user: int, tokens: int) -> dict[str, Any]:
    chosen = {"temperature": 0.8, "seed": user} if user % 2 else {"temperature": 0.0}
    prompt = [ring.random.randrange(ring.model.vocabulary_size) for _ in range(32)]
    fixed = {"prompt_token_ids": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    return fixed | chosen


async def _read(ring: ServedRing, body: dict[str, Any], answer: Answer) -> None:
    async for event in ring.client.stream("/generate", body):
        tokens = event.get("token_ids", ())
        answer.tokens += tokens
        answer.at_s += [time.perf_counter()] * len(tokens)


async def _kill(ring: ServedRing, place: int, unix_s: float, pauses_s: list[float]) -> Kill:
    """A kill by what the cluster has noted of it since."""
    events = (await ring.client.get("/cluster/events"))["events"]
    since = [one for one in events if one["unix_s"] >= unix_s]
    lost = next(one["unix_s"] for one in since if one["kind"] == "stage_lost")
    resumed = next(one["text"] for one in since if one["kind"] == "ring_resumed")
    found = RESUMED.search(resumed)
    assert found is not None, f"an event of another form: {resumed}"
    times = float(found[1]), float(found[2])
    return Kill(place, pauses_s, lost - unix_s, *times, int(found[3]))


def _figures(kills: list[Kill]) -> Figures:
    ordered = sorted(pause_s for kill in kills for pause_s in kill.pauses_s)
    detection_s, joining_s = _mean(kills, "detection_s"), _mean(kills, "joining_s")
    return {
        "pause_p50_s": percentile(ordered, 50),
        "pause_p95_s": percentile(ordered, 95),
        "detection_mean_s": detection_s,
        "joining_mean_s": joining_s,
        "loading_mean_s": _mean(kills, "loading_s"),
        "lag_mean_s": sum(ordered) / len(ordered) - detection_s - joining_s,
        "behind_mean_tokens": _mean(kills, "behind_tokens"),
        "kills_count": float(len(kills)),
        **{f"pause_{kill.place}_worst_s": max(kill.pauses_s) for kill in kills},
    }


def _mean(kills: list[Kill], name: str) -> float:
    return float(sum(getattr(kill, name) for kill in kills) / len(kills))


def _table(middle: dict[str, Figures]) -> str:
    head = ("goes on with", "pause p50, s", "p95", "detection", "joining", "of that loading", "lag")
    keys = ("pause_p50_s", "pause_p95_s", "detection_mean_s", "joining_mean_s", "loading_mean_s")
    rows = [
        [name, *(f"{one[key]:.2f}" for key in (*keys, "lag_mean_s")), f"{behind:.0f}"]
        for name, one in middle.items()
        for behind in [one["behind_mean_tokens"]]
    ]
    return markdown_table((*head, "tokens sent again"), rows)


if __name__ == "__main__":
    main()
