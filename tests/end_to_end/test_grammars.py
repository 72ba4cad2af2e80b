"""Answers of the demo model that match what users ask of them, through real processes."""

import asyncio
import json
import re

import openai
import psutil
import pytest
from jsonschema import Draft202012Validator

from tests.sweeps import swept
from tools.experiments.grammars.schemas import json_schemas

SCHEMAS = json_schemas()
EVERY = (9, 3)
"""Of each family some, one of nine or of three; all are compiled and tried in one process
(tests/engine/sampling/test_grammar.py, tests/serving/test_grammar_check.py)."""

AT_ONCE = 24
MAX_TOKENS = 250
FINISHED_SHARE_MIN = 0.85
"""Most schemas are bounded; a small model that writes blanks may still run out of tokens."""

SENTENCE = "([a-z]{1,9} ){30}[a-z]{1,9}\\."


@pytest.fixture(scope="module")
def demo_server(tools):
    with tools.serving("demo", "--nodes", "2", "--dtype", "float32") as server:
        yield server


@pytest.fixture
async def client(demo_server):
    url = f"{demo_server.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", timeout=300) as client:
        yield client


@pytest.mark.parametrize("every", swept(EVERY, of=1))
async def test_every_finished_answer_is_valid(client, every):
    schemas, places = SCHEMAS[::every], asyncio.Semaphore(AT_ONCE)

    async def answer(seed, name, schema):
        wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        async with places:
            chat = await client.chat.completions.create(
                model="demo",
                messages=[{"role": "user", "content": f"Write {name}."}],
                response_format=wanted,
                max_tokens=MAX_TOKENS,
                seed=seed,
            )
        return name, schema, chat.choices[0]

    answers = await asyncio.gather(
        *(answer(seed, name, schema) for seed, (name, schema) in enumerate(schemas))
    )
    finished = [one for one in answers if one[2].finish_reason == "stop"]
    assert {choice.finish_reason for _, _, choice in answers} <= {"stop", "length"}
    assert len(finished) >= FINISHED_SHARE_MIN * len(answers) >= 150 / every
    for _, schema, choice in finished:
        check = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
        check.validate(json.loads(choice.message.content))


async def test_a_streamed_answer_is_the_whole_one(client):
    wish = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Write a number."}],
        "response_format": {"type": "json_object"},
        "max_tokens": 40,
        "seed": 5,
    }
    whole = (await client.chat.completions.create(**wish)).choices[0]
    stream = await client.chat.completions.create(**wish, stream=True)
    chunks = [chunk.choices[0] async for chunk in stream]
    assert "".join(one.delta.content or "" for one in chunks) == whole.message.content
    assert chunks[-1].finish_reason == whole.finish_reason


async def test_other_grammars_and_biases(client):
    async def write(**extra):
        answer = await client.completions.create(
            model="demo", prompt="The answer is", max_tokens=30, extra_body=extra, logprobs=2
        )
        return answer.choices[0]

    chosen = await write(guided_choice=["yes", "no", "perhaps"])
    assert chosen.text in ("yes", "no", "perhaps") and chosen.finish_reason == "stop"
    matched = await write(guided_regex="[0-9]{3}-[a-z]{2}")
    assert re.fullmatch("[0-9]{3}-[a-z]{2}", matched.text)
    nested = await write(structured_outputs={"grammar": 'root ::= "(" root ")" | "x"'})
    assert re.fullmatch(r"\(*x\)*", nested.text)
    cut = await write(guided_regex="[0-9]{90}", max_tokens=5)
    assert cut.finish_reason == "length"


async def test_a_bias_decides_among_what_a_grammar_allows(tools, demo_server):
    body = {"prompt": "The answer is", "guided_choice": ["a", "b", "c"], "temperature": 0}
    _, free = await tools.post(demo_server.url, "/generate", body)
    [token] = free["token_ids"]
    biased = {**body, "logit_bias": {str(token): -100}}
    _, other = await tools.post(demo_server.url, "/generate", biased)
    assert other["text"] in {"a", "b", "c"} - {free["text"]}


async def lose_a_stage(tools, server, tokens_max):
    """Kill one as soon as an answer of at most so many tokens has begun."""

    async def has_begun():
        latest = (await tools.get(server.url, "/cluster/requests"))["requests"][:1]
        return any(one["answer_tokens_max"] == tokens_max and one["tokens"] > 5 for one in latest)

    await tools.eventually(has_begun)
    stages = (await tools.get(server.url, "/cluster"))["stages"]
    psutil.Process(stages[1]["pid"]).kill()


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "tags": {
            "type": "array",
            "items": {"type": "string", "maxLength": 20},
            "minItems": 6,
            "maxItems": 6,
        },
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}


async def test_two_choices_of_a_schema_outlive_a_stage(tools, demo_server):
    """With penalties, seeds and log-probabilities, on a ring with a stage in reserve: neither does
    a grammar begin anew nor is a token counted twice."""
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    body = {
        "model": "demo",
        "prompt": "A person:",
        "n": 2,
        "seed": 5,
        "temperature": 0.8,
        "frequency_penalty": 0.5,
        "logprobs": 2,
        "max_tokens": 190,
        "response_format": wanted,
    }
    with tools.serving("demo", "--nodes", "2", "--dtype", "float32", waits=True) as server:
        asked = asyncio.create_task(tools.post(server.url, "/v1/completions", body))
        await lose_a_stage(tools, server, body["max_tokens"])
        status, answer = await asked
        assert (await tools.get(server.url, "/cluster"))["epoch"] > 1
    _, whole = await tools.post(demo_server.url, "/v1/completions", body)
    assert status == 200 and answer["usage"] == whole["usage"]
    for one, other in zip(answer["choices"], whole["choices"], strict=True):
        assert (one["text"], one["finish_reason"]) == (other["text"], other["finish_reason"])
        assert one["logprobs"]["tokens"] == other["logprobs"]["tokens"]
        found = one["logprobs"]["token_logprobs"]
        assert found == pytest.approx(other["logprobs"]["token_logprobs"], abs=1e-4)
        Draft202012Validator(PERSON).validate(json.loads(one["text"]))


async def test_answers_are_exact_through_preemption_and_the_loss_of_a_stage(tools, demo_server):
    """KV for two or three of the six sequences: they are preempted and recomputed, and their
    grammars replayed. Then one goes on when a stage is killed."""
    body = {"prompt": "Once upon a time", "guided_regex": SENTENCE, "max_tokens": 150}
    bodies = [{**body, "seed": seed, "temperature": 1.0} for seed in range(6)]

    async def all_texts(server):
        answers = await asyncio.gather(*(tools.post(server.url, "/generate", b) for b in bodies))
        return [answer["text"] for _, answer in answers]

    options = ("--nodes", "2", "--dtype", "float32", "--kv-tokens", "256")
    with tools.serving("demo", *options) as server:
        texts = await all_texts(server)
        before = await tools.get(server.url, "/cluster")
        long = {**bodies[3], "guided_regex": "[a-z ]{400}", "max_tokens": 200}
        asked = asyncio.create_task(tools.post(server.url, "/generate", long))

        await lose_a_stage(tools, server, long["max_tokens"])
        status, answer = await asked
        after = await tools.get(server.url, "/cluster")
    assert texts == await all_texts(demo_server)
    assert all(re.fullmatch(SENTENCE, text) for text in texts)
    assert status == 200 and after["epoch"] > before["epoch"]
    _, whole = await tools.post(demo_server.url, "/generate", long)
    assert answer["text"] == whole["text"]
