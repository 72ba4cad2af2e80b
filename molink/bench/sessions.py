"""Replay of agents' sessions against a server: `molink bench --sessions`.

So many sessions are played at a time, each turn after the answer before it (a closed loop). Texts
are random tokens; sessions with one prefix begin alike. Before each turn but the first, its session
asks for as many new tokens *without* their history, and for one token: the control. What a turn
takes longer than its control is the price of its history, at the same moment, under the same load.
A control in a run of its own was rejected: it would meet a ring that does something else.

A turn has *seen before* all that its session sent and got before it, or the part of its prefix that
an earlier answer covers. Of that, the server says how much was cached.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from molink.bench.report import report
from molink.bench.runner import PlannedRequest, RequestRecord, run_plan, send, warm_up
from molink.client.api_client import ApiClient, ListedModel
from molink.errors import UserError
from molink.json_object import JsonObject
from molink.workload.figures import spread
from molink.workload.sessions import LATE_FROM, AgentSession, read_sessions
from molink.workload.trace import TraceRequest

WARM_UP_SEED = 2026


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Sessions of a file, so many at a time."""

    url: str
    sessions: str
    """File with the sessions."""
    concurrency: int
    seed: int = 0
    """Seed of all texts: the same seed sends the same prompts, where answers are the same."""
    temperature: float = 0.0
    warmup: int = 1
    """Short requests for each session at a time before the clock starts; they are not counted."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """Record of one turn and its control."""

    turn: int
    """Number of it in its session, from 1."""
    prompt_tokens: int
    seen_tokens: int
    """Tokens of its prompt that the server has seen before."""
    request: RequestRecord
    control: RequestRecord | None
    """The new tokens alone; None: all of the prompt is new."""

    @property
    def ttft_times(self) -> float | None:
        """Time to the first token over that of the control; None: there is no such pair."""
        control = self.control.ttft_s if self.control is not None else None
        return self.request.ttft_s / control if control and self.request.ttft_s else None

    def to_json(self) -> JsonObject:
        """The record for a report."""
        control_s = None if self.control is None else self.control.ttft_s
        names = ("turn", "prompt_tokens", "seen_tokens")
        return {name: getattr(self, name) for name in names} | {
            "cached_tokens": self.request.cached_tokens,
            "ttft_s": self.request.ttft_s,
            "control_ttft_s": control_s,
        }


@dataclass(slots=True)
class _Replay:
    """Sessions that are played against one server."""

    client: ApiClient
    settings: SessionSettings
    words: int
    """Size of the vocabulary."""
    done: Callable[[RequestRecord], None]
    records: list[TurnRecord] = field(default_factory=list)
    _seen_prefixes: dict[str, int] = field(default_factory=dict)
    """Tokens of each prefix that were part of an answered prompt."""

    async def work(self, waiting: Iterator[tuple[int, AgentSession]]) -> None:
        """Play one session after the other."""
        for number, session in waiting:
            await self._play(Random(f"session {self.settings.seed} {number}"), session)

    async def _play(self, random: Random, session: AgentSession) -> None:
        prefix = Random(f"prefix {self.settings.seed} {session.prefix}")
        history = self._draw(prefix, session.prefix_tokens)
        seen = min(self._seen_prefixes.get(session.prefix, 0), session.prefix_tokens)
        for number, turn in enumerate(session.turns, start=1):
            await asyncio.sleep(turn.wait_s)
            control = None
            if number > 1:
                control = await self._ask(random, self._draw(random, turn.new_tokens), 1)
            history += self._draw(random, turn.new_tokens)
            record = await self._ask(random, history, turn.answer_tokens)
            self.records.append(TurnRecord(number, len(history), seen, record, control))
            self.done(record)
            if record.error is not None:
                return  # What it would have answered is part of the next prompt.
            history += record.token_ids
            seen = len(history)
            known = self._seen_prefixes.get(session.prefix, 0)
            self._seen_prefixes[session.prefix] = max(known, session.prefix_tokens)

    def _draw(self, random: Random, tokens: int) -> list[int]:
        return random.choices(range(self.words), k=tokens)

    async def _ask(self, random: Random, prompt: list[int], answer_tokens: int) -> RequestRecord:
        record = RequestRecord(start_s=time.perf_counter())
        planned = PlannedRequest(tuple(prompt), answer_tokens, random.getrandbits(63))
        await send(self.client, planned, self.settings.temperature, record)
        return record


async def run_sessions(
    settings: SessionSettings,
    done: Callable[[RequestRecord], None],
    planned: Callable[[int], None],
    key: str | None,
) -> JsonObject:
    """Replay the sessions and report on them; the parameters are those of `run_load`."""
    sessions = read_sessions(Path(settings.sessions))
    async with ApiClient(settings.url, key) as client:
        model = await ListedModel.ask(client)
        _check_lengths(sessions, model.max_model_len)
        planned(sum(len(session.turns) for session in sessions))
        lengths, slots = TraceRequest(0.0, *[model.max_model_len // 2] * 2), settings.concurrency
        random, rounds = Random(WARM_UP_SEED), settings.warmup
        warming = warm_up(random, model.vocabulary_size, lengths, slots=slots, rounds=rounds)
        await run_plan(client, warming, temperature=settings.temperature)
        replay = _Replay(client, settings, model.vocabulary_size, done)
        waiting = enumerate(sessions)
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(slots, len(sessions))):
                workers.create_task(replay.work(waiting))
    return sessions_report(replay.records) | {"model": model.name, "settings": asdict(settings)}


def _check_lengths(sessions: Sequence[AgentSession], model_len_max: int) -> None:
    for number, session in enumerate(sessions, start=1):
        if session.context_tokens > model_len_max:
            raise UserError(
                f"session {number} comes to {session.context_tokens} tokens, over the model's "
                f"length of {model_len_max}: give sessions of fewer turns"
            )


def sessions_report(records: Sequence[TurnRecord]) -> JsonObject:
    """The figures of a load, and those of early and late turns apart."""
    good = [one for one in records if one.request.ttft_s is not None and not one.request.error]
    early = [one for one in good if one.turn < LATE_FROM]
    late = [one for one in good if one.turn >= LATE_FROM]
    return report([one.request for one in records]) | {
        "turns": {
            f"1 to {LATE_FROM - 1}": _turns_figures(early),
            f"{LATE_FROM} on": _turns_figures(late),
        },
        "turn_records": [one.to_json() for one in records],
    }


def _turns_figures(records: Sequence[TurnRecord]) -> JsonObject:
    seen = sum(one.seen_tokens for one in records)
    cached = sum(min(one.request.cached_tokens, one.seen_tokens) for one in records)
    times = [one.ttft_times for one in records if one.ttft_times is not None]
    ttfts = [one.request.ttft_s for one in records if one.request.ttft_s is not None]
    controls = [one.control.ttft_s for one in records if one.control and one.control.ttft_s]
    return {
        "count": len(records),
        "hit_rate": cached / seen if seen else None,
        "ttft_p50_s": spread(ttfts)["p50"],
        "control_ttft_p50_s": spread(controls)["p50"],
        "times_p50": spread(times)["p50"],
        "times_max": max(times, default=None),
    }
