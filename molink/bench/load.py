"""The load that `molink bench` puts on a server: settings in, report out."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from molink.bench.plan import closed_loop, warm_up
from molink.bench.report import report
from molink.bench.runner import RequestRecord, run_plan
from molink.client.api_client import ApiClient
from molink.client.served_model import ServedModel
from molink.errors import UserError

__all__ = ["LoadSettings", "run_load"]

WARM_UP_SEED = 2026
"""Of its own, so that the counted requests are the same ones whatever `warmup` is."""


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


async def run_load(
    settings: LoadSettings, done: Callable[[RequestRecord], None] = lambda record: None
) -> dict[str, Any]:
    """Run the load; `done` hears of each counted request's end."""
    lengths = {"input_tokens": settings.input_tokens, "output_tokens": settings.output_tokens}
    async with ApiClient(settings.url) as client:
        model = await ServedModel.ask(client)
        _check_lengths(settings, model.max_model_len)
        words, slots = model.vocabulary_size, settings.concurrency
        warming = warm_up(
            Random(WARM_UP_SEED), words, slots=slots, rounds=settings.warmup, **lengths
        )
        await run_plan(client, warming, temperature=settings.temperature)
        plan = closed_loop(
            Random(settings.seed), words, slots=slots, requests=settings.requests, **lengths
        )
        records = await run_plan(client, plan, temperature=settings.temperature, done=done)
    return report(records) | {"model": model.name, "settings": asdict(settings)}


def _check_lengths(settings: LoadSettings, model_len_max: int) -> None:
    wanted = settings.input_tokens + settings.output_tokens
    if wanted > model_len_max:
        raise UserError(
            f"{settings.input_tokens} tokens in and {settings.output_tokens} out are over the "
            f"model's length of {model_len_max}: lower --input-tokens or --output-tokens"
        )
