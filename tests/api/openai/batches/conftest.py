"""A server with batches over a folder of the test's own."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import openai
import pytest

from molink.api import create_app, start_api
from molink.api.backend import Backend
from molink.api.chat import ChatFormat
from molink.api.openai.batches.endpoint import add_batch_routes
from molink.api.openai.logprobs import TokenTexts

CHAT = "/v1/chat/completions"


def line(name: str, endpoint: str = CHAT, **body: Any) -> bytes:
    asked = {"messages": [{"role": "user", "content": name}], "max_tokens": 3} | body
    if endpoint == "/v1/completions":
        asked = {"prompt": name, "max_tokens": 3} | body
    told = {"custom_id": name, "method": "POST", "url": endpoint, "body": asked}
    return json.dumps(told).encode() + b"\n"


@pytest.fixture
async def start(tmp_path) -> AsyncGenerator[Callable[..., Any], None]:
    """`await start(service)` gives the URL of a server with batches, and what stops it."""
    runners = []

    async def begin(service: Any, access: Any = None) -> tuple[str, Callable[[], Any]]:
        app = create_app(service, access)
        backend = Backend(service, TokenTexts(service), ChatFormat.of(service.card.tokenizer))
        add_batch_routes(app, backend, tmp_path)
        runner = await start_api(app, "127.0.0.1", 0)
        runners.append(runner)
        return f"http://127.0.0.1:{runner.addresses[0][1]}", runner.cleanup

    yield begin
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def client(service, start):
    url, _ = await start(service)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def until(client, batch_id: str, *statuses: str) -> Any:
    """The batch, once it is in one of these states."""
    async with asyncio.timeout(20):
        while (batch := await client.batches.retrieve(batch_id)).status not in statuses:  # noqa: ASYNC110 - a server
            await asyncio.sleep(0.02)
    return batch


async def made(client, content: bytes, endpoint: str = CHAT, window: str = "24h") -> Any:
    file = await client.files.create(file=("asked.jsonl", content), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window=window
    )


async def lines_of(client, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    content = await client.files.content(file_id)
    return [json.loads(one) for one in content.text.splitlines()]
