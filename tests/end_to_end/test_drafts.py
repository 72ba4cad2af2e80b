"""A ring whose head drafts answers as one that does not, in fewer rounds, also when stages die."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from molink.models import DEMO_DRAFTER_DIR, DEMO_MODEL_DIR
from tests.end_to_end.test_lifecycle import kinds_of_events
from tests.end_to_end.test_neighbours import LOADS_ONCE
from tools.cycle_model import make_cyclic, successors

PROMPTS = [[3 + i, 5, 9 + i] * (5 + 2 * i) for i in range(4)]
CHATS = (
    "Tell me a story about a dog.",
    "What do you like to eat?",
    "Why is the sky blue?",
    "Write a short poem about the sea.",
)
MAX_TOKENS = 80
LONG_TOKENS = 150
"""Of answers under which stages are killed."""
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
    long: dict[float, list[list[int]]]
    """The same, going on behind their ends."""


@pytest.fixture(scope="module")
def undrafted(tools) -> Chats:
    async def asked(server) -> Chats:
        messages = [{"messages": [{"role": "user", "content": one}]} for one in CHATS]
        told = [await tools.post(server.url, "/tokenize", one) for one in messages]
        prompts = [answer["tokens"] for _, answer in told]
        chats = Chats(prompts, {}, {})
        for of in (0.0, 0.8):
            call = (tools, server, prompts)
            chats.answers[of] = await answers_of(*call, temperature=of, ignore_eos=False)
            chats.long[of] = await answers_of(*call, temperature=of, max_tokens=LONG_TOKENS)
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


async def killed(tools, server, place: int, tokens: int, resumed: int) -> None:
    """The stage in this place is gone once each answer has so many tokens, some of them drafted,
    and the ring goes on without it."""

    async def has_them():
        requests = (await tools.get(server.url, "/cluster/requests"))["requests"]
        under_way = [one["tokens"] for one in requests if one["finish_reason"] is None]
        return len(under_way) == 2 * len(CHATS) and min(under_way) >= tokens

    async def goes_on():
        kinds = await kinds_of_events(tools, server, ring=0)
        return kinds.count("ring_resumed") == resumed

    await tools.eventually(has_them, within_s=HANGS_S)
    assert (await drafter_of(tools, server, DEMO_DRAFTER_DIR.name))["rounds"]
    cluster = await tools.get(server.url, "/cluster")
    psutil.Process(cluster["stages"][place]["pid"]).kill()
    await tools.eventually(goes_on, within_s=HANGS_S)


async def shadowed(tools, server) -> bool:
    nodes = (await tools.get(server.url, "/cluster"))["nodes"]
    return any(one["shadow"] for one in nodes)


@pytest.mark.parametrize(
    ("layers", "changes", "places"),
    [
        (("--nodes", "3"), LOADS_ONCE, (1, 0)),
        (("--nodes", "3"), "", (2,)),
        (("--layers", "0-3,3-9", "--standby", "1"), "", (1,)),
    ],
    ids=["a neighbour", "its own node", "a shadow"],
)
async def test_stages_killed_with_drafts_under_way_change_no_token(
    tools, undrafted, layers, changes, places
):
    """Layers that a neighbour takes beside its own, a stage that its node loads again, and a shadow
    that was fed no row of a draft before that was known to be right."""
    random, options = Random(len(places)), (*OPTIONS[2:], *layers, *DRAFTING)
    with tools.serving(str(DEMO_MODEL_DIR), *options, changes=changes) as server:
        if "--standby" in layers:
            assert await tools.eventually(lambda: shadowed(tools, server), within_s=HANGS_S)
        call = (tools, server, undrafted.prompts)
        asked = [
            asyncio.create_task(answers_of(*call, temperature=of, max_tokens=LONG_TOKENS))
            for of in undrafted.long
        ]
        for count, place in enumerate(places):
            await killed(tools, server, place, 8 + 40 * count + random.randrange(30), count + 1)
        assert await asyncio.gather(*asked) == list(undrafted.long.values())
        kinds = await kinds_of_events(tools, server, ring=0)
        assert not {"ring_ended", "request_moved"} & set(kinds)


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
            if drafter == "copy":
                found = await drafter_of(tools, server, "grammar")
    assert answers[0] == answers[1]
    assert found["acceptance"] > 0.9
    assert found["tokens_per_round"] > 2


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
