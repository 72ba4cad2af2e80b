"""llama.cpp over its RPC: three servers of one thread each, and the one that users ask.

Its programs are those of `tools/real/llama_cpp.md`, in the folder that MOLINK_LLAMA_CPP names. With
a link, each RPC server stands behind MoLink's own emulator of home lines.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp

from molink.client.api_client import ApiClient
from molink.config.link_schedule import LinkSchedule
from molink.errors import UserError
from tools.real.served import Served

__all__ = ["PROGRAMS_VARIABLE", "answers", "is_built", "llama_cpp_ring", "programs"]

PROGRAMS_VARIABLE = "MOLINK_LLAMA_CPP"

READY_S_MAX = 180.0
"""Weights of half a gigabyte cross an emulated line of 100 Mbps within 40 s."""

ENDED_S_MAX = 20.0

ANSWERS_AT_ONCE = 4
ANSWERED_CONTEXT_TOKENS = 1024
"""For a short prompt and its answer."""


def programs() -> Path:
    """The folder with llama.cpp's programs. Raises UserError where it is not named or not built."""
    folder = Path(os.environ.get(PROGRAMS_VARIABLE, ""))
    missing = [name for name in ("llama-server", "ggml-rpc-server") if not (folder / name).exists()]
    if not os.environ.get(PROGRAMS_VARIABLE) or missing:
        raise UserError(
            f"{PROGRAMS_VARIABLE} names no folder with llama-server and ggml-rpc-server: build "
            "them as tools/real/llama_cpp.md says"
        )
    return folder


def is_built() -> bool:
    """Whether the environment names a folder with llama.cpp's programs."""
    return bool(os.environ.get(PROGRAMS_VARIABLE))


async def answers(gguf: Path, prompts: Mapping[str, str], tokens: int) -> Served:
    """llama.cpp's tokens of texts, and its greedy answers of a fixed length.

    Raises UserError where it cannot be started.
    """
    context_tokens = ANSWERS_AT_ONCE * ANSWERED_CONTEXT_TOKENS
    async with (
        llama_cpp_ring(gguf, 1, None, context_tokens, ANSWERS_AT_ONCE) as url,
        ApiClient(url) as client,
    ):

        async def cut(text: str) -> list[int]:
            asked = {"content": text, "add_special": True, "parse_special": True}
            found: list[int] = (await client.post("/tokenize", asked))["tokens"]
            return found

        async def answer(prompt: Sequence[int]) -> list[int]:
            greedy = {"temperature": 0.0, "ignore_eos": True, "return_tokens": True}
            asked = {"prompt": list(prompt), "n_predict": tokens, **greedy}
            found: list[int] = (await client.post("/completion", asked))["tokens"]
            return found

        served = Served({name: await cut(text) for name, text in prompts.items()})
        began_s = time.perf_counter()
        found = await asyncio.gather(*map(answer, served.prompts.values()))
        served.tokens_per_s = sum(map(len, found)) / (time.perf_counter() - began_s)
        served.answers = dict(zip(served.prompts, found, strict=True))
        return served


@asynccontextmanager
async def llama_cpp_ring(
    gguf: Path, stages: int, link: str | None, context_tokens: int, users: int
) -> AsyncIterator[str]:
    """The address of a server whose layers are computed by `stages` RPC servers of one thread."""
    folder = programs()
    with ExitStack() as started:
        ports = [free_port() for _ in range(stages)]
        for port in ports:
            own = ("-H", "127.0.0.1", "-p", str(port), "-t", "1")
            started.enter_context(_running(str(folder / "ggml-rpc-server"), *own))
        for port in ports:
            await _listening(port)
        shown = started.enter_context(_behind_lines(ports, link)) if link else ports
        port = free_port()
        addresses = ",".join(f"127.0.0.1:{one}" for one in shown)
        words = (
            *("-m", str(gguf), "--host", "127.0.0.1", "--port", str(port), "--rpc", addresses),
            *("-ngl", "99", "-ts", ",".join(["1"] * stages), "-t", "1", "-fit", "off"),
            *("-c", str(context_tokens), "-np", str(users)),
        )
        started.enter_context(_running(str(folder / "llama-server"), *words))
        url = f"http://127.0.0.1:{port}"
        await _healthy(url)
        yield url


def free_port() -> int:
    """A port of loopback on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _running(*words: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(ENDED_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _behind_lines(ports: Sequence[int], link: str) -> Iterator[list[int]]:
    """Ports of emulated lines, each to one of `ports`."""
    targets = (f"127.0.0.1:{port}" for port in ports)
    schedule = LinkSchedule.parse(link).text
    words = (sys.executable, "-m", "molink.transport.emulator", schedule, *targets)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["ports"]
        finally:
            process.stdin.close()
            process.wait(ENDED_S_MAX)


async def _listening(port: int) -> None:
    async def connects() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    await _until(connects, f"an RPC server on port {port}")


async def _healthy(url: str) -> None:
    async with aiohttp.ClientSession() as session:

        async def answers() -> bool:
            try:
                async with session.get(f"{url}/health") as response:
                    return response.status == 200
            except aiohttp.ClientError:
                return False

        await _until(answers, "llama-server")


async def _until(true: Callable[[], Awaitable[bool]], what: str) -> None:
    ends_s = time.monotonic() + READY_S_MAX
    while not await true():
        if time.monotonic() > ends_s:
            raise UserError(f"{what} was not ready within {READY_S_MAX:.0f} s")
        await asyncio.sleep(0.1)
