"""The agent that holds a ring's head fetches the model that drafts, and so does the next head."""

import asyncio
import shutil

import pytest

from molink.models import DEMO_DRAFTER_DIR, DEMO_MODEL_DIR
from tests.end_to_end.clusters import cluster

PROMPTS = [[3 + i, 5, 9 + i] * (5 + 2 * i) for i in range(4)]
MAX_TOKENS = 100
MEMORY_GB = "0.024"
"""Room for some layers of the demo model in 32 bits with the drafter: no PC can hold it alone."""

OPTIONS = ("--min-nodes", "3", "--wait", "--dtype", "float32", "--context-tokens", "128")


async def answers(tools, made) -> list[list[int]]:
    body = {"max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
    posts = [
        tools.post(made.url, "/generate", {"prompt_token_ids": prompt, **body})
        for prompt in PROMPTS
    ]
    found = await asyncio.gather(*posts)
    assert [status for status, _ in found] == [200] * len(PROMPTS), found
    return [answer["token_ids"] for _, answer in found]


async def drafts_again(tools, made, expected) -> dict:
    """What the cluster tells of the drafter, once a tenth of what it drafted came true, which is no
    chance among 2,000 words; until then the ring answers as the model does."""

    async def drafter():
        assert await answers(tools, made) == expected
        report = await tools.get(made.url, "/cluster")
        told = [one for ring in report["rings"] for one in ring["drafters"]]
        named = [one for one in told if one["name"] == DEMO_DRAFTER_DIR.name]
        return next((one for one in named if one["acceptance"] > 0.1), None)

    return await tools.eventually(drafter, within_s=120)


def fetched(made, name) -> bool:
    """Whether the agent of this name has the drafter on its disk."""
    models = made.data_dir(name) / "weights" / "models"
    return any(models.glob(f"{DEMO_DRAFTER_DIR.name.replace('_', '-')}-*/layers-0-2"))


def joined(made):
    for name in ("anna", "ben", "cleo"):
        made.join(name, "--memory-gb", MEMORY_GB, "--threads", "1", known_steps=True)
    made.up.line("ready")


async def head_of(tools, made) -> str:
    (ring,) = (await tools.get(made.url, "/cluster"))["rings"]
    return ring["stages"][0]["node"]


@pytest.fixture(scope="module")
def expected(tools):
    return tools.greedy_reference(DEMO_MODEL_DIR, PROMPTS, MAX_TOKENS)


async def test_the_head_s_agent_fetches_the_drafter_and_the_next_head_does(
    tools, tmp_path, expected
):
    """Every answer is the model's, whoever drafts and before anybody does."""
    options = (*OPTIONS, "--drafter", str(DEMO_DRAFTER_DIR), "--draft-width-max", "4")
    with cluster(tmp_path, DEMO_MODEL_DIR, *options) as made:
        joined(made)
        told = await drafts_again(tools, made, expected)
        assert told["width"] <= 4
        assert (await tools.get(made.url, "/cluster"))["trouble"] == []
        first = await head_of(tools, made)
        assert [name for name in made.agents if fetched(made, name)] == [first]
        made.agents.pop(first).kill()

        async def another_head():
            report = await tools.get(made.url, "/cluster")
            heads = [ring["stages"][0]["node"] for ring in report["rings"]]
            return heads and first not in heads and heads

        (second,) = await tools.eventually(another_head, within_s=120)
        await drafts_again(tools, made, expected)
        assert fetched(made, second)


async def test_a_drafter_of_other_words_is_named_and_not_fetched(tools, tmp_path, expected):
    """One word of its tokenizer has another number."""
    other = shutil.copytree(DEMO_DRAFTER_DIR, tmp_path / "other")
    shutil.copy(DEMO_MODEL_DIR / "tokenizer_config.json", other)
    words = (DEMO_MODEL_DIR / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(words.replace('": 1000,', '": 9000,', 1))
    with cluster(tmp_path, DEMO_MODEL_DIR, *OPTIONS, "--drafter", str(other)) as made:
        joined(made)
        assert await answers(tools, made) == expected
        (trouble,) = (await tools.get(made.url, "/cluster"))["trouble"]
        assert trouble.startswith("The ring serves without the drafter other: ")
        assert "token 1000 is another one" in trouble
        assert not list(tmp_path.glob("*/weights/models/other-*"))
        made.up.line_with("serves without the drafter other")
