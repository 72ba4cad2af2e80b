"""The load that `molink bench` puts on a server: settings in, report out.

Either a closed loop (so many users, each of whom sends the next random prompt when the last one is
answered), or with `--trace` an open one: requests come when the trace says, however many are still
being answered. With `--sessions` agents' sessions are replayed (`molink.bench.sessions`).
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, assert_never

from molink.bench.goodput import goodput_of
from molink.bench.report import report
from molink.bench.runner import (
    RequestPlan,
    RequestRecord,
    closed_loop,
    open_loop,
    run_plan,
    warm_up,
)
from molink.bench.sessions import SessionSettings, run_sessions
from molink.client.api_client import ApiClient, ListedModel
from molink.errors import UserError
from molink.json_object import JsonObject
from molink.workload.trace import (
    TraceRequest,
    at_rate,
    generate_trace,
    read_trace,
    scaled,
    within,
)
from molink_scheduler.routing.admission import NO_TARGETS, Targets

CLOSED_LOOP = ("concurrency", "requests", "input_tokens", "output_tokens")
OPEN_LOOP = ("rate", "duration_s", "scale")
NO_SESSIONS = ("requests", "input_tokens", "output_tokens", "trace", *OPEN_LOOP)

WARM_UP_SEED = 2026
"""Seed of the warm-up alone: the counted requests are the same ones whatever `warmup` is."""

TRACE_WARM_UP_SLOTS = 4
"""A trace has no number of users; so many connections are opened before the clock starts."""

GENERATED = "generated"
"""Named in place of a file: the mix that ships with the project."""

GENERATED_DURATION_S = 60.0
"""How long a generated load lasts without --duration-s; a file's lasts as long as the file."""


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """A closed loop of random prompts of one length."""

    url: str
    concurrency: int
    requests: int
    input_tokens: int
    output_tokens: int
    seed: int = 0
    """Prompts and sampling follow from it: the same seed sends the same requests."""
    temperature: float = 0.0
    warmup: int = 1
    """Short requests for each slot before the clock starts; they are not counted."""


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """An open loop of random prompts with a trace's lengths and times."""

    url: str
    trace: str
    """A file, or `generated`."""
    rate: float
    """Requests per second."""
    duration_s: float | None = None
    input_scale: float = 1.0
    output_scale: float = 1.0
    """Lengths are multiplied by these, for models that are small or slow."""
    seed: int = 0
    temperature: float = 0.0
    warmup: int = 1
    """Rounds of short requests before the clock starts; they are not counted."""


Settings = LoadSettings | TraceSettings | SessionSettings


# -- the command line's options -------------------------------------------------------------------


def settings_from(options: dict[str, Any], given: Collection[str]) -> Settings:
    """The load that `options` ask for; `given` names those that the user typed."""
    options = dict(options)
    if options["sessions"] is not None:
        _refuse(NO_SESSIONS, given, "not", "--sessions")
        return SessionSettings(**{k: v for k, v in options.items() if k not in NO_SESSIONS})
    del options["sessions"]
    traced = options["trace"] is not None
    _refuse(CLOSED_LOOP if traced else OPEN_LOOP, given, "not" if traced else "only")
    for name in CLOSED_LOOP if traced else (*OPEN_LOOP, "trace"):
        del options[name]
    if not traced:
        return LoadSettings(**options)
    if options["rate"] is None:
        raise UserError("--trace needs --rate, the requests per second")
    scale = options.pop("scale") or 1.0
    return TraceSettings(**options, input_scale=scale, output_scale=scale)


def refuse_beside_profile(given: Collection[str]) -> None:
    """Raises UserError when an option of a load was given: a profile has no server."""
    for name in given:
        raise UserError(f"--{name.replace('_', '-')} goes not with --profile")


def _refuse(
    names: Collection[str], given: Collection[str], how: str, beside: str = "--trace"
) -> None:
    for name in names:
        if name in given:
            raise UserError(f"--{name.replace('_', '-')} goes {how} with {beside}")


# -- the load -------------------------------------------------------------------------------------


async def run_load(
    settings: Settings,
    done: Callable[[RequestRecord], None] = lambda record: None,
    planned: Callable[[int], None] = lambda count: None,
    key: str | None = None,
    targets: Targets = NO_TARGETS,
) -> dict[str, Any]:
    """Run the load and report on it, where there are targets with its goodput.

    `key` is of the server's API, if it wants one. `planned` is called with the number of requests,
    `done` with each one's record when it ends. Cancelled (Ctrl-C), it reports on what has ended.
    """
    ended: list[RequestRecord] = []

    def has_ended(record: RequestRecord) -> None:
        ended.append(record)
        done(record)

    try:
        found = await _run(settings, has_ended, planned, key)
    except asyncio.CancelledError:
        if not ended:
            raise
        found = report(ended) | {"settings": asdict(settings), "interrupted": True}
    if targets.are_set:
        found["goodput"] = goodput_of(ended, targets, found["wall_s"])
    return found


async def _run(
    settings: Settings,
    done: Callable[[RequestRecord], None],
    planned: Callable[[int], None],
    key: str | None,
) -> JsonObject:
    if isinstance(settings, SessionSettings):
        return await run_sessions(settings, done, planned, key)
    async with ApiClient(settings.url, key) as client:
        model = await ListedModel.ask(client)
        warming, plan, offered = _plans(settings, model)
        planned(len(plan.requests))
        await run_plan(client, warming, temperature=settings.temperature)
        records = await run_plan(client, plan, temperature=settings.temperature, done=done)
    return report(records) | {"model": model.name, "settings": asdict(settings), **offered}


def _plans(
    settings: LoadSettings | TraceSettings, model: ListedModel
) -> tuple[RequestPlan, RequestPlan, dict[str, Any]]:
    """The warm-up, the counted requests, and what to report of the load beside its settings."""
    warm_random, random = Random(WARM_UP_SEED), Random(settings.seed)
    words, rounds = model.vocabulary_size, settings.warmup
    match settings:
        case LoadSettings():
            _check_lengths(settings, model.max_model_len)
            slots = settings.concurrency
            lengths = TraceRequest(0.0, settings.input_tokens, settings.output_tokens)
            plan = closed_loop(random, words, lengths, slots=slots, requests=settings.requests)
            return warm_up(warm_random, words, lengths, slots=slots, rounds=rounds), plan, {}
        case TraceSettings():
            requests = _trace_requests(settings, model.max_model_len)
            half = model.max_model_len // 2
            lengths = TraceRequest(0.0, half, half)
            warming = warm_up(warm_random, words, lengths, slots=TRACE_WARM_UP_SLOTS, rounds=rounds)
            return warming, open_loop(random, words, requests), {"offered": _offered(requests)}
        case _:
            assert_never(settings)


def _check_lengths(settings: LoadSettings, model_len_max: int) -> None:
    wanted = settings.input_tokens + settings.output_tokens
    if wanted > model_len_max:
        raise UserError(
            f"{settings.input_tokens} tokens in and {settings.output_tokens} out are over the "
            f"model's length of {model_len_max}: lower --input-tokens or --output-tokens"
        )


def _trace_requests(settings: TraceSettings, model_len_max: int) -> list[TraceRequest]:
    """Requests with their times; own random numbers, so that prompts do not depend on thinning."""
    random = Random(f"trace {settings.seed}")
    scales = settings.input_scale, settings.output_scale
    if settings.trace == GENERATED:
        duration_s = settings.duration_s or GENERATED_DURATION_S
        requests = generate_trace(random, settings.rate, duration_s)
        found = within(scaled(requests, *scales), model_len_max)
    else:
        requests = within(read_trace(Path(settings.trace)), 2**31)
        fitting = within(scaled(requests, *scales), model_len_max)
        found = at_rate(random, fitting, settings.rate, settings.duration_s)
    if not found:
        raise UserError(
            f"no request of the trace fits the model's length of {model_len_max} tokens and the "
            "duration: lower --scale, or raise --rate or --duration-s"
        )
    return found


def _offered(requests: Sequence[TraceRequest]) -> dict[str, float]:
    """Figures of what the trace asked for."""
    count = len(requests)
    return {
        "requests": count,
        "input_tokens_mean": sum(request.input_tokens for request in requests) / count,
        "output_tokens_mean": sum(request.output_tokens for request in requests) / count,
        "last_start_s": requests[-1].start_s,
    }
