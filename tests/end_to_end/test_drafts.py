"""A ring whose head drafts answers as one that does not, in fewer rounds."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from molink.models import DEMO_DRAFTER_DIR, DEMO_MODEL_DIR
from tools.cycle_model import make_cyclic, successors

PROMPTS = [[3 + i, 5, 9 + i] * (5 + 2 * i) for i in range(4)]
CHATS = (
    "Tell me a story about a dog.",
    "What do you like to eat?",
    "Why is the sky blue?",
    "Write a short poem about the sea.",
)
MAX_TOKENS = 80
HANGS_S = 240.0
"""After so long a ring stands; a busy machine computes eight answers in less."""
OPTIONS = ("--nodes", "3", "--dtype", "float32", "--link", "100:15", "--kv-tokens", "2048")
DRAFTING = ("--drafter", str(DEMO_DRAFTER_DIR), "--draft-width-max", "4")


async def answers_of(tools, server, prompts, **more) -> list[list[int]]:
    body = {"max_tokens": MAX_TOKENS, "ignore_eos": True} | more
    posts = [
        tools.post(server.url, "/generate", {"prompt_token_ids": prompt, "seed": 5, **body})
        for prompt in prompts
    ]
    return [answer["token_ids"] for _, answer in await asyncio.gather(*posts)]


@pytest.fixture(scope="module")
def cyclic(tools, tiny_llama, tmp_path_factory) -> Path:
    """A model whose greedy text runs in circles, which a copy follows."""
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    make_cyclic(model, successors(model.config.vocab_size, cycle=20, wrong=0.0))
    model.save_pretrained(directory := tmp_path_factory.mktemp("models") / "cyclic")
    return directory


@pytest.fixture(scope="module")
def expected(tools, cyclic):
    return tools.greedy_reference(cyclic, PROMPTS, MAX_TOKENS)


@dataclass(frozen=True)
class Chats:
    """What the demo model answers without drafts."""

    prompts: list[list[int]]
    answers: dict[float, list[list[int]]]
    """By temperature, up to their ends."""


@pytest.fixture(scope="module")
def undrafted(tools) -> Chats:
    async def asked(server) -> Chats:
        messages = [{"messages": [{"role": "user", "content": one}]} for one in CHATS]
        told = [await tools.post(server.url, "/tokenize", one) for one in messages]
        prompts = [answer["tokens"] for _, answer in told]
        chats = Chats(prompts, {})
        for of in (0.0, 0.8):
            call = (tools, server, prompts)
            chats.answers[of] = await answers_of(*call, temperature=of, ignore_eos=False)
        (ring,) = (await tools.get(server.url, "/cluster"))["rings"]
        assert ring["drafters"] == []
        return chats

    with tools.serving(str(DEMO_MODEL_DIR), *OPTIONS) as server:
        return asyncio.run(asked(server))


async def drafter_of(tools, server, name: str) -> dict:
    """Figures of a drafter of the ring, once its head has told of it."""

    async def told():
        (ring,) = (await tools.get(server.url, "/cluster"))["rings"]
        return next((one for one in ring["drafters"] if one["name"] == name), None)

    return await tools.eventually(told, within_s=HANGS_S)


async def test_a_ring_that_copies_answers_as_one_that_does_not(tools, cyclic, expected):
    with tools.serving(str(cyclic), *OPTIONS, "--drafter", "copy") as server:
        assert await answers_of(tools, server, PROMPTS, temperature=0) == expected
        copying = await drafter_of(tools, server, "copy")
    assert copying["acceptance"] > 0.8
    assert copying["tokens_per_round"] > 1.5


async def test_the_shipped_drafter_changes_no_token_of_the_demo_model(tools, undrafted):
    """Greedy and drawn: each user's own seed draws the drafts, too."""
    with tools.serving(str(DEMO_MODEL_DIR), *OPTIONS, *DRAFTING) as server:
        for of, answers in undrafted.answers.items():
            call = (tools, server, undrafted.prompts)
            assert await answers_of(*call, temperature=of, ignore_eos=False) == answers
        model = await drafter_of(tools, server, DEMO_DRAFTER_DIR.name)
    assert model["acceptance"] > 0.7
    assert model["width"] <= 4
    assert model["tokens_per_round"] > 1.2


async def test_a_drafter_of_other_words_is_named_and_the_ring_serves_without(
    tools, cyclic, expected
):
    with tools.serving(str(cyclic), *OPTIONS, "--drafter", str(DEMO_DRAFTER_DIR)) as server:
        assert await answers_of(tools, server, PROMPTS, temperature=0) == expected
    assert "serves without the drafter" in "".join(server.stderr)


async def test_a_prediction_is_copied_and_changes_no_answer(tools):
    """Against a prediction that has nothing to do with the answer."""
    with tools.serving("demo", "--nodes", "2", "--dtype", "float32", "--drafter", "copy") as server:
        answer, copied = await predicted(tools, server, "x")
        again, more = await predicted(tools, server, answer)
    assert again == answer
    assert more > copied


async def predicted(tools, server, prediction: str) -> tuple[str, int]:
    """An answer, and how many of its tokens had been drafted."""
    body = {
        "messages": [{"role": "user", "content": "Tell me a story about a dog."}],
        "prediction": {"type": "content", "content": prediction},
        "temperature": 0,
        "max_tokens": 60,
    }
    status, answer = await tools.post(server.url, "/v1/chat/completions", body)
    assert status == 200, answer
    details = answer["usage"]["completion_tokens_details"]
    return answer["choices"][0]["message"]["content"], details["accepted_prediction_tokens"]
