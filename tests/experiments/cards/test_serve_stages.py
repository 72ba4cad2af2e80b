"""What is asked of a ring on a card, asked of a scripted server; a real ring takes too long."""

import os
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace

import pytest
import torch

from molink.bench.served_ring import ServedRing
from molink.client.api_client import ApiClient, ListedModel
from molink.errors import UserError
from tests.scripted_server import service, url
from tools.experiments.cards import serve_stages
from tools.experiments.cards.serve_stages import _served

__all__ = ["service", "url"]

CARD, CPU = torch.device("cuda:0"), torch.device("cpu")


@pytest.fixture
def started(url, monkeypatch):
    """Options of the rings that were started."""
    asked = []

    @asynccontextmanager
    async def serve_ring(model, options, seed, warm_up):
        asked.append((model, *options))
        server = SimpleNamespace(pid=os.getpid(), url=url)
        async with ApiClient(url) as client:
            yield ServedRing(client, await ListedModel.ask(client), server, Random(seed))

    monkeypatch.setattr(serve_stages, "serve_ring", serve_ring)
    monkeypatch.setattr(serve_stages, "_stage_bytes", lambda ring, device: [7 * 2**20])
    return asked


async def test_a_card_is_compared_with_cpus(started):
    figures = {figure.what: figure async for figure in _served(CARD)}
    assert [options[:5] for options in started] == [
        ("demo", "--device", name, "--nodes", "3") for name in ("cuda:0", "cpu")
    ]
    assert figures["answers equal to those of CPUs"].value == len(serve_stages.PROMPTS)
    assert figures["memory of a stage"].shown == "7 MB"
    assert figures["8 users"].value > 0


async def test_other_answers_are_an_error(started, monkeypatch):
    answers = iter([[1, 2], [3], [4], [1, 2], [3], [5]])

    async def answer(ring, prompt):
        return next(answers)

    monkeypatch.setattr(serve_stages, "_answer", answer)
    with pytest.raises(UserError, match=r"\[4\]\], CPUs \[\[1, 2\], \[3\], \[5\]\]"):
        [figure async for figure in _served(CARD)]


async def test_a_cpu_is_compared_with_nobody(started):
    figures = [figure async for figure in _served(CPU)]
    assert len(started) == 1 and figures[-1].what == "answers"
