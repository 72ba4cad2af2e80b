"""A batch beside users on a real ring: users get what they get alone, and each line its answer,
also from a server that was killed in between."""

import asyncio
import json
import signal

import openai

MODEL = "demo"
ENDPOINT = "/v1/completions"
LINES, TOKENS = 12, 24
OPTIONS = ("--nodes", "2", "--cache-ram-gb", "0")


def asked(number: int) -> dict:
    prompt = f"Number {number} of a list is"
    return {"model": MODEL, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}


def line(number: int) -> bytes:
    told = {"custom_id": f"line {number}", "method": "POST", "url": ENDPOINT}
    return json.dumps(told | {"body": asked(number)}).encode() + b"\n"


def client_of(server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


async def text_of(client, number: int) -> str:
    return (await client.completions.create(**asked(number))).choices[0].text


async def answers_of(client, file_id) -> dict[str, str]:
    content = (await client.files.content(file_id)).text
    told = [json.loads(one) for one in content.splitlines()]
    assert len({one["custom_id"] for one in told}) == len(told)
    return {one["custom_id"]: one["response"]["body"]["choices"][0]["text"] for one in told}


async def done(client, batch_id, least: int):
    batch = await client.batches.retrieve(batch_id)
    return batch if batch.request_counts.completed >= least else None


async def ended(client, batch_id):
    batch = await client.batches.retrieve(batch_id)
    return batch if batch.status == "completed" else None


async def test_users_and_a_batch_beside_them_and_a_server_that_was_killed(tools):
    with tools.serving(MODEL, *OPTIONS) as server:
        client = client_of(server)
        alone = {f"line {one}": await text_of(client, one) for one in range(LINES)}
        content = b"".join(map(line, range(LINES))) + b"broken\n"
        file = await client.files.create(file=content, purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
        )
        live = await asyncio.gather(*(text_of(client, one) for one in range(3)))
        assert live == [alone[f"line {one}"] for one in range(3)]
        await tools.eventually(lambda: done(client, batch.id, 2))
        server.stop(signal.SIGKILL)
    with tools.serving(MODEL, *OPTIONS) as server:
        client = client_of(server)
        batch = await tools.eventually(lambda: ended(client, batch.id), within_s=60)
        assert (batch.request_counts.completed, batch.request_counts.failed) == (LINES, 1)
        assert await answers_of(client, batch.output_file_id) == alone
        report = await tools.get(server.url, "/cluster/requests")
        assert 0 < len([one for one in report["requests"] if one["tokens"]]) < LINES
