"""What OpenAI and Anthropic serve and we do not is refused by its name, in the caller's shape."""

import openai
import pytest

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def client(service, serve):
    url = await serve(service)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        yield client


@pytest.mark.parametrize(
    ("subject", "call"),
    [
        ("Embeddings", lambda c: c.embeddings.create(model="m", input="x")),
        ("Images", lambda c: c.images.generate(prompt="a ring")),
        ("Images", lambda c: c.images.edit(image=b"png", prompt="a ring")),
        ("Audio", lambda c: c.audio.speech.create(model="m", voice="v", input="x")),
        ("Audio", lambda c: c.audio.transcriptions.create(model="m", file=b"wav")),
        ("Moderation", lambda c: c.moderations.create(input="x")),
        ("Fine-tuning", lambda c: c.fine_tuning.jobs.create(model="m", training_file="f")),
        ("Vector stores", lambda c: c.vector_stores.create()),
        ("Answers are not kept", lambda c: c.chat.completions.retrieve("chatcmpl-1")),
        ("Answers are not kept", lambda c: c.conversations.create()),
    ],
)
async def test_each_is_refused_once_and_by_its_name(client, subject, call):
    with pytest.raises(openai.NotFoundError, match=subject) as caught:
        await call(client)
    assert caught.value.code == "unsupported_endpoint"


async def test_a_misspelt_path_is_told_what_there_is(service, serve, http):
    url = await serve(service)
    async with http.post(f"{url}/v1/completion", data=b"x") as response:
        error = (await response.json())["error"]
    assert response.status == 404
    assert "/v1/completions" in error["message"]


@pytest.mark.parametrize("path", ["/v1/messages/batches", "/v1/complete", "/v1/messages/x"])
async def test_anthropics_paths_answer_in_anthropics_shape(service, serve, http, path):
    url = await serve(service)
    async with http.post(f"{url}{path}", json={}) as response:
        body = await response.json()
    assert response.status == 404
    assert body.keys() == {"type", "error"} and body["type"] == "error"
    assert body["error"]["type"] == "not_found_error" and body["error"]["message"]
