"""The load that `molink bench --trace` puts on a server: requests come when the trace says, however
many are still being answered."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from molink.bench.load import WARM_UP_SEED
from molink.bench.plan import open_loop, warm_up
from molink.bench.report import report
from molink.bench.runner import RequestRecord, run_plan
from molink.client.api_client import ApiClient
from molink.client.served_model import ServedModel
from molink.errors import UserError
from molink.workload.trace import TraceRequest, read_trace
from molink.workload.trace_fit import at_rate, scaled, within
from molink.workload.trace_mix import generate_trace

__all__ = ["GENERATED", "TraceSettings", "run_trace"]

GENERATED = "generated"
"""Named in place of a file: the mix that ships with the project."""

GENERATED_DURATION_S = 60.0
"""How long a generated load lasts when nobody says; a file's lasts as long as the file."""

WARM_UP_SLOTS = 4
WARM_UP_INPUT_TOKENS, WARM_UP_OUTPUT_TOKENS = 32, 4


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


async def run_trace(
    settings: TraceSettings,
    planned: Callable[[int], None] = lambda count: None,
    done: Callable[[RequestRecord], None] = lambda record: None,
) -> dict[str, Any]:
    """Run the load; `planned` hears how many requests there are, `done` of each one's end."""
    async with ApiClient(settings.url) as client:
        model = await ServedModel.ask(client)
        requests = _requests(settings, model.max_model_len)
        planned(len(requests))
        await _warm_up(client, settings, model)
        plan = open_loop(Random(settings.seed), model.vocabulary_size, requests)
        records = await run_plan(client, plan, temperature=settings.temperature, done=done)
    return report(records) | {
        "model": model.name,
        "settings": asdict(settings),
        "offered": _offered(requests),
    }


def _requests(settings: TraceSettings, model_len_max: int) -> list[TraceRequest]:
    """What is asked when; its own random numbers, so that prompts do not depend on the thinning."""
    random = Random(f"trace {settings.seed}")
    if settings.trace == GENERATED:
        duration_s = settings.duration_s or GENERATED_DURATION_S
        requests = generate_trace(random, settings.rate, duration_s)
        found = within(scaled(requests, *_scales(settings)), model_len_max)
    else:
        requests = within(read_trace(Path(settings.trace)), 2**31)
        fitting = within(scaled(requests, *_scales(settings)), model_len_max)
        found = at_rate(random, fitting, settings.rate, settings.duration_s)
    if not found:
        raise UserError(
            f"no request of the trace fits the model's length of {model_len_max} tokens and the "
            "duration: lower --scale, or raise --rate or --duration-s"
        )
    return found


def _scales(settings: TraceSettings) -> tuple[float, float]:
    return settings.input_scale, settings.output_scale


async def _warm_up(client: ApiClient, settings: TraceSettings, model: ServedModel) -> None:
    warming = warm_up(
        Random(WARM_UP_SEED),
        model.vocabulary_size,
        slots=WARM_UP_SLOTS,
        rounds=settings.warmup,
        input_tokens=min(WARM_UP_INPUT_TOKENS, model.max_model_len // 2),
        output_tokens=min(WARM_UP_OUTPUT_TOKENS, model.max_model_len // 2),
    )
    await run_plan(client, warming, temperature=settings.temperature)


def _offered(requests: Sequence[TraceRequest]) -> dict[str, float]:
    """What the trace asked for."""
    count = len(requests)
    return {
        "requests": count,
        "input_tokens_mean": sum(one.input_tokens for one in requests) / count,
        "output_tokens_mean": sum(one.output_tokens for one in requests) / count,
        "last_start_s": requests[-1].start_s,
    }
