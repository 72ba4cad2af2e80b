"""`molink demo`: see a model of nine layers answer from three processes joined by slow links."""

import asyncio
import signal
import sys
import time
from typing import TYPE_CHECKING

import click

from molink.errors import UserError

if TYPE_CHECKING:
    from molink.config.settings import ServeSettings
    from molink.serving.service import GenerationRequest, GenerationService, ModelCard

__all__ = ["demo"]

STAGES = 3
LINK = "100:30"
"""A good home link: 100 Mbps up, 30 ms to the next PC."""

PROMPT = "Tell me a story about a fox and a lighthouse."
ANSWER_TOKENS_MAX = 160
TEMPERATURE = 0.7
SEED = 7

HEALTH_WITHIN_S = 0.8
"""A little more than stages take to report: by then their counters cover the whole answer."""


@click.command()
@click.option("--chat", is_flag=True, help="Stay, and talk with the model.")
@click.option("--prompt", default=PROMPT, show_default=True, help="What to ask it.")
def demo(chat: bool, prompt: str) -> None:
    """Start three stages of the demo model over emulated home links and stream an answer."""
    from molink.config.link_schedule import LinkSchedule
    from molink.config.settings import ServeSettings
    from molink.tasks import until_stopped

    settings = ServeSettings(model="demo", nodes=STAGES, port=0, link=LinkSchedule.parse(LINK))
    asyncio.run(until_stopped(_demo(settings, prompt, chat)))


async def _demo(settings: "ServeSettings", prompt: str, chat: bool) -> None:
    from molink.cli.terminal import until_loaded
    from molink.coordinator.local.start import start_local

    print(f"Starting {STAGES} stages of the demo model, {LINK} (Mbps:ms) on every link ...")
    async with start_local(settings) as cluster:
        await until_loaded(cluster, STAGES)
        if chat:
            await _chat(cluster.service)
        else:
            await _one_answer(cluster.service, prompt)


async def _one_answer(service: "GenerationService", prompt: str) -> None:
    """Stream one answer and print how quick the ring was."""
    print(f"\nYou: {prompt}\nModel: ", end="", flush=True)
    arrivals = []
    started = time.monotonic()
    async for event in service.generate(_request(service.card, prompt)):
        arrivals.append(time.monotonic())
        print(event.text, end="", flush=True)
    print("\n")
    _print_speed(started, arrivals)
    await asyncio.sleep(HEALTH_WITHIN_S)
    _print_hops(service)


def _request(card: "ModelCard", prompt: str) -> "GenerationRequest":
    from molink.serving.service import GenerationRequest
    from molink_scheduler.request import SamplingParams

    assert card.tokenizer is not None, "the demo model has a tokenizer"
    conversation = [{"role": "user", "content": prompt}]
    text = card.tokenizer.apply_chat_template(
        conversation, add_generation_prompt=True, tokenize=False
    )
    token_ids = tuple(card.tokenizer.encode(text, add_special_tokens=False))
    if len(token_ids) + ANSWER_TOKENS_MAX > card.model_len_max:
        raise UserError(f"The prompt is {len(token_ids)} tokens long: use a shorter one.")
    sampling = SamplingParams(
        max_tokens=ANSWER_TOKENS_MAX,
        temperature=TEMPERATURE,
        seed=SEED,
        stop_token_ids=card.eos_token_ids,
    )
    return GenerationRequest(token_ids, sampling)


def _print_speed(started: float, arrivals: list[float]) -> None:
    ttft_s = arrivals[0] - started
    tpot_s = (arrivals[-1] - arrivals[0]) / max(1, len(arrivals) - 1)
    rate = len(arrivals) / (arrivals[-1] - started)
    print(f"TTFT {ttft_s:.3f} s   TPOT {tpot_s:.3f} s   {rate:.1f} tokens/s   ", end="")
    print(f"({len(arrivals)} tokens, seed {SEED})")


def _print_hops(service: "GenerationService") -> None:
    print("Bytes per hop:")
    for link in service.cluster()["links"]:
        hop = f"{link['from']} -> {link['to']}"
        print(f"  {hop:26} {link['bytes_sent']:>9,} bytes in {link['messages_sent']:,} messages")


async def _chat(service: "GenerationService") -> None:
    """The ordinary chat command, in a process of its own, against the ordinary API of this ring.

    A process, because the terminal's Ctrl-C then stops an answer there while the ring goes on here.
    """
    from molink.api import create_app, start_api

    runner = await start_api(create_app(service), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
    command = (sys.executable, "-m", "molink.cli.main", "chat", "--url", url)
    try:
        chat = await asyncio.create_subprocess_exec(*command)
        await chat.wait()
    finally:
        await runner.cleanup()
