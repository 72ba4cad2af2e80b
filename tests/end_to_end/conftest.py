"""Real processes: `molink serve` over tiny random models that the tests make, and clients of it."""

import asyncio
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

import aiohttp
import psutil
import pytest

from tests.end_to_end.command_line import READY_WITHIN_S, command_line, refusals, started
from tests.end_to_end.forked.process import ForkedProcess

SEED = 11


@dataclass
class Server:
    """A running `molink serve`."""

    process: subprocess.Popen | ForkedProcess
    url: str
    stderr: list[str] = field(default_factory=list)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, how: int = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.process.wait(timeout=30)


@pytest.fixture(scope="session", autouse=True)
def data_home(tmp_path_factory) -> Iterator[Path]:
    """The user's data are these tests' own: whoever runs them may have keys."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("data")
        patch.setenv("XDG_DATA_HOME", str(home))
        patch.delenv("MOLINK_API_KEY", raising=False)
        yield home


def run_molink(*arguments: str, timeout_s: float = READY_WITHIN_S, forks: bool = True, **options):
    """An order to `molink` that has ended; `forks`: it need not import."""
    line = command_line(*arguments, forks=forks)
    return subprocess.run(line, capture_output=True, text=True, timeout=timeout_s, **options)


@contextmanager
def serving(model: str, *options: str, waits: bool = False, forks: bool = True, changes: str = ""):
    """Serve on a free port until the block ends; nothing that was started is left behind. `waits`:
    with a process that waits for the loss of a stage; `forks`: it and its stages start at once;
    `changes`: Python that the server's process runs first."""
    arguments = ("serve", model, "--port", "0", *options)
    process = started(*arguments, waits=waits, forks=forks, stderr=subprocess.PIPE, changes=changes)
    server = Server(process, "")
    reader = threading.Thread(target=lambda: server.stderr.extend(process.stderr), daemon=True)
    reader.start()
    try:
        line = process.stdout.readline()
        assert line.startswith("ready http"), (line, server.stderr)
        server.url = line.split()[1]
        yield server
    finally:
        children = psutil.Process(process.pid).children(True) if process.poll() is None else []
        if process.poll() is None:
            server.stop()
        psutil.wait_procs(children, timeout=10)


def save_tiny_llama(directory: Path, **changes) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    settings = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.5,
    }
    LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).save_pretrained(directory)
    return directory


def greedy_reference(directory: Path, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """What transformers' own `generate` continues each prompt with, end tokens ignored."""
    return [_continued(directory, tuple(prompt), max_tokens) for prompt in prompts]


@cache
def _continued(directory: Path, prompt: tuple[int, ...], max_tokens: int) -> list[int]:
    """Kept: several tests ask the same of the same model."""
    import torch

    model, ids = _whole_model(directory), torch.tensor([prompt])
    full = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False
    )
    return full[0, len(prompt) :].tolist()


@cache
def _whole_model(directory: Path):
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    return model


def prompts_of_mixed_length(count: int = 8) -> list[list[int]]:
    random = Random(3)
    return [[random.randrange(3, 97) for _ in range(1 + 6 * i)] for i in range(count)]


async def post(url: str, path: str, body: dict) -> tuple[int, dict]:
    async with aiohttp.ClientSession() as session, session.post(url + path, json=body) as answer:
        return answer.status, json.loads(await answer.text())


async def first_events(
    session: aiohttp.ClientSession, url: str, body: dict, name: str, count: int
) -> list[dict]:
    """The first events of a streamed answer to the request of this id, which goes on."""
    headers, events = {"X-Request-Id": name}, []
    answer = await session.post(url, json=body | {"stream": True}, headers=headers)
    async for line in answer.content:
        if line.startswith(b"data: {"):
            events.append(json.loads(line.removeprefix(b"data: ")))
        if len(events) == count:
            break
    return events


async def get(url: str, path: str) -> dict:
    async with aiohttp.ClientSession() as session, session.get(url + path) as answer:
        return json.loads(await answer.text())


async def eventually(check, within_s: float = 20.0):
    """The first true answer of an async `check`, asked again until then."""
    async with asyncio.timeout(within_s):
        while not (answer := await check()):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    return answer


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama")


@dataclass(frozen=True)
class Tools:
    """What the tests of this folder share."""

    serving = staticmethod(serving)
    run_molink = staticmethod(run_molink)
    refusals = staticmethod(refusals)
    save_tiny_llama = staticmethod(save_tiny_llama)
    greedy_reference = staticmethod(greedy_reference)
    post = staticmethod(post)
    get = staticmethod(get)
    first_events = staticmethod(first_events)
    eventually = staticmethod(eventually)


@pytest.fixture(scope="session")
def tools() -> Tools:
    return Tools()
