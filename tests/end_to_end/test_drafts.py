"""A ring whose head drafts answers as one that does not, in fewer rounds."""

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from molink.models import DEMO_DRAFTER_DIR, DEMO_MODEL_DIR
from tools.cycle_model import make_cyclic, successors

PROMPTS = [[3 + i, 5, 9 + i] * (5 + 2 * i) for i in range(4)]
MAX_TOKENS = 80
OPTIONS = ("--nodes", "3", "--dtype", "float32", "--link", "100:15", "--kv-tokens", "1024")


async def answers_of(tools, server, **more) -> list[list[int]]:
    body = {"max_tokens": MAX_TOKENS, "ignore_eos": True} | more
    posts = [
        tools.post(server.url, "/generate", {"prompt_token_ids": prompt, "seed": 5, **body})
        for prompt in PROMPTS
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


@pytest.fixture
async def undrafted(tools):
    """Answers of the demo model without drafts, by temperature."""
    with tools.serving(str(DEMO_MODEL_DIR), *OPTIONS) as server:
        found = {one: await answers_of(tools, server, temperature=one) for one in (0.0, 0.8)}
        (ring,) = (await tools.get(server.url, "/cluster"))["rings"]
        assert ring["drafters"] == []
        return found


async def drafters_of(tools, server) -> dict:
    """Drafters of the ring by name, once its head has told of some."""

    async def told():
        (ring,) = (await tools.get(server.url, "/cluster"))["rings"]
        return {one["name"]: one for one in ring["drafters"]}

    return await tools.eventually(told)


async def test_a_ring_that_copies_answers_as_one_that_does_not(tools, cyclic, expected):
    with tools.serving(str(cyclic), *OPTIONS, "--drafter", "copy") as server:
        assert await answers_of(tools, server, temperature=0) == expected
        copying = (await drafters_of(tools, server))["copy"]
    assert copying["acceptance"] > 0.8
    assert copying["tokens_per_round"] > 1.5


async def test_the_shipped_drafter_changes_no_token_of_the_demo_model(tools, undrafted):
    """Greedy and drawn: each user's own seed draws the drafts, too."""
    options = (*OPTIONS, "--drafter", str(DEMO_DRAFTER_DIR), "--draft-width-max", "4")
    with tools.serving(str(DEMO_MODEL_DIR), *options) as server:
        for temperature, answers in undrafted.items():
            assert await answers_of(tools, server, temperature=temperature) == answers
        model = (await drafters_of(tools, server))[DEMO_DRAFTER_DIR.name]
    assert model["acceptance"] > 0.3  # These prompts are no text.
    assert model["width"] <= 4
    assert model["tokens_per_round"] > 1.2


async def test_a_drafter_of_other_words_is_named_and_the_ring_serves_without(
    tools, cyclic, expected
):
    with tools.serving(str(cyclic), *OPTIONS, "--drafter", str(DEMO_DRAFTER_DIR)) as server:
        assert await answers_of(tools, server, temperature=0) == expected
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


RECORD = {
    "type": "object",
    "properties": {
        "description": {"type": "string", "maxLength": 12},
        "is_available": {"type": "boolean"},
        "category": {"enum": ["vegetables", "household goods"]},
    },
    "required": ["description", "is_available", "category"],
    "additionalProperties": False,
}


async def test_what_a_schema_leaves_no_choice_about_comes_in_one_round_and_is_the_same(tools):
    """On a ring that copies; nothing is copied here."""
    answers = []
    for drafter in ("none", "copy"):
        with tools.serving(str(DEMO_MODEL_DIR), *OPTIONS, "--drafter", drafter) as server:
            answers.append(await record_of(tools, server))
            found = await drafters_of(tools, server) if drafter == "copy" else {}
    assert answers[0] == answers[1]
    assert found["grammar"]["acceptance"] > 0.9
    assert found["grammar"]["tokens_per_round"] > 2


async def record_of(tools, server) -> str:
    body = {
        "messages": [{"role": "user", "content": "Describe a carrot."}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "record", "schema": RECORD},
        },
        "seed": 5,
        "max_tokens": 90,
    }
    status, answer = await tools.post(server.url, "/v1/chat/completions", body)
    assert status == 200, answer
    return answer["choices"][0]["message"]["content"]
