"""`molink demo`: see a model of nine layers answer from three processes joined by slow links."""

import asyncio
import json
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from molink.errors import UserError
from molink.report.plain import to_plain
from molink.terminal.command_line import quiet_option, shown_option
from molink.terminal.tables import json_option
from molink.terminal.word_wrap import WordWrap

if TYPE_CHECKING:
    from molink.config.settings import ServeSettings
    from molink.report.cluster import RingLink
    from molink.serving.model_card import ModelCard
    from molink.serving.service import GenerationRequest, GenerationService

Talk = Callable[["GenerationService"], Awaitable[None]]

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
@shown_option("--prompt", default=PROMPT, help="What to ask it.")
@quiet_option
@json_option
def demo(chat: bool, prompt: str, quiet: bool, as_json: bool) -> None:
    """Start three stages of the demo model over emulated home links and stream an answer."""
    from molink.config.link_schedule import LinkSchedule
    from molink.config.setting import settings_of
    from molink.config.settings import ServeSettings
    from molink.tasks import until_stopped

    link = LinkSchedule.parse(LINK)
    settings = settings_of(ServeSettings, model="demo", nodes=STAGES, port=0, link=link)
    if chat and as_json:
        raise UserError("A conversation is no JSON: leave one of --chat and --json out.")
    talk = _chat if chat else partial(_one_answer, prompt=prompt, as_json=as_json)
    asyncio.run(until_stopped(_demo(settings, talk, quiet=quiet or as_json)))


async def _demo(settings: "ServeSettings", talk: Talk, *, quiet: bool) -> None:
    from molink.cli.cluster_status import until_loaded
    from molink.coordinator.local.start import start_local

    if not quiet:
        print(f"Starting {STAGES} stages of the demo model, {LINK} (Mbps:ms) on every link ...")
    async with start_local(settings) as cluster:
        await until_loaded(cluster, STAGES, shown=not quiet)
        await talk(cluster.service)


async def _one_answer(service: "GenerationService", prompt: str, *, as_json: bool) -> None:
    """Stream one answer and print how quick the ring was; or print both as one object."""
    tell = _print_nothing if as_json else partial(print, end="", flush=True)
    wrap = WordWrap(shutil.get_terminal_size().columns) if sys.stdout.isatty() else None
    tell(f"\nYou: {prompt}\n")
    tell(wrap.wrapped("Model: ") if wrap else "Model: ")
    arrivals, answer = [], ""
    started = time.monotonic()
    async for event in service.generate(_request(service.card, prompt)):
        arrivals += [time.monotonic()] * len(event.token_ids)
        answer += event.text
        tell(wrap.wrapped(event.text) if wrap else event.text)
    tell(wrap.rest() if wrap else "")
    speed = _speed(started, arrivals)
    tell(f"\n\n{_speed_line(speed)}\n")
    await asyncio.sleep(HEALTH_WITHIN_S)
    links = [link for ring in service.cluster().rings for link in ring.links]
    tell(f"Bytes per hop:\n{''.join(map(_hop_line, links))}")
    if as_json:
        told = {"prompt": prompt, "answer": answer, **speed, "links": [*map(to_plain, links)]}
        print(json.dumps(told))


def _print_nothing(text: str) -> None:
    """Nobody reads along."""


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


def _speed(started: float, arrivals: list[float]) -> dict[str, float]:
    return {
        "tokens": len(arrivals),
        "seed": SEED,
        "ttft_s": arrivals[0] - started,
        "tpot_s": (arrivals[-1] - arrivals[0]) / max(1, len(arrivals) - 1),
        "tokens_per_s": len(arrivals) / (arrivals[-1] - started),
    }


def _speed_line(speed: dict[str, float]) -> str:
    return (
        f"TTFT {speed['ttft_s']:.3f} s   TPOT {speed['tpot_s']:.3f} s   "
        f"{speed['tokens_per_s']:.1f} tokens/s   ({speed['tokens']} tokens, seed {speed['seed']})"
    )


def _hop_line(link: "RingLink") -> str:
    hop = f"{link.source} -> {link.target}"
    return f"  {hop:26} {link.bytes_sent:>9,} bytes in {link.messages_sent:,} messages\n"


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
