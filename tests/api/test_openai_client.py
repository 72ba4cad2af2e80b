"""The official client, unchanged, against a real server."""

import openai
import pytest

MODEL = "tiny/model"
HELLO = [{"role": "user", "content": "hello"}]


async def test_completion(client):
    answer = await client.completions.create(model=MODEL, prompt="hi")
    assert answer.object == "text_completion" and answer.model == MODEL
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == ("abcdefghijklmnop", "length")
    assert choice.logprobs is None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 16)


@pytest.mark.parametrize(
    ("prompt", "token_ids"),
    [
        ("a", [(1, 97)]),
        (["a", "b"], [(1, 97), (1, 98)]),
        ([7, 8], [(7, 8)]),
        ([[7], [8, 9]], [(7,), (8, 9)]),
    ],
)
async def test_every_shape_of_a_prompt(client, service, prompt, token_ids):
    answer = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=2)
    assert [request.prompt_token_ids for request in service.requests] == token_ids
    assert [choice.index for choice in answer.choices] == list(range(len(token_ids)))
    assert answer.usage.prompt_tokens == sum(len(ids) for ids in token_ids)
    assert answer.usage.completion_tokens == 2 * len(token_ids)


async def test_choices_have_seeds_of_their_own_and_the_same_ones_again(client, service):
    for _ in range(2):
        answer = await client.completions.create(
            model=MODEL, prompt=["a", "b"], n=3, seed=-5, max_tokens=1
        )
        assert [choice.index for choice in answer.choices] == list(range(6))
    seeds = [request.sampling.seed for request in service.requests]
    assert seeds[0] == 2**64 - 5
    assert len(set(seeds[:3])) == 3
    assert seeds == seeds[:3] * 4


async def test_streamed_completion(client):
    stream = await client.completions.create(
        model=MODEL,
        prompt="hi",
        n=2,
        max_tokens=3,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = [chunk async for chunk in stream]
    assert len({chunk.id for chunk in [*chunks, last]}) == 1
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (3, 6)
    for index in range(2):
        own = [c.choices[0] for c in chunks if c.choices[0].index == index]
        assert "".join(choice.text for choice in own) == "abc"
        assert [choice.finish_reason for choice in own] == [None, None, "length"]


async def test_usage_in_each_chunk(client):
    stream = await client.completions.create(
        model=MODEL,
        prompt="hi",
        n=2,
        max_tokens=3,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    *chunks, last = [chunk async for chunk in stream]
    for index in range(2):
        own = [chunk.usage for chunk in chunks if chunk.choices[0].index == index]
        assert [usage.completion_tokens for usage in own] == [1, 2, 3]
        assert {usage.prompt_tokens for usage in own} == {3}
    assert last.usage.completion_tokens == 6


async def test_completion_logprobs(client):
    answer = await client.completions.create(model=MODEL, prompt="hi", max_tokens=2, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens == ["a", "b"]
    assert logprobs.token_logprobs == [-0.5, -0.5]
    assert logprobs.top_logprobs == [{"a": -0.5, "b": -1.5}, {"b": -0.5, "c": -1.5}]
    assert logprobs.text_offset == [0, 1]


async def test_streamed_completion_logprobs_count_along(client):
    stream = await client.completions.create(
        model=MODEL, prompt="hi", max_tokens=3, logprobs=0, stream=True
    )
    offsets = [chunk.choices[0].logprobs.text_offset async for chunk in stream]
    assert offsets == [[0], [1], [2]]


async def test_chat(client, service):
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.object == "chat.completion"
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.finish_reason == "stop"
    assert choice.message.content == "abcdefghijklmnopqrstuvwxyz"
    (request,) = service.requests
    text = "".join(chr(one) for one in request.prompt_token_ids)
    assert text == "<user>hello<assistant>", "the template writes all special tokens itself"
    assert request.sampling.max_tokens == 200 - len(text)
    assert answer.usage.total_tokens == len(text) + 26


async def test_chat_message_parts_and_roles(client, service):
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    answer = await client.chat.completions.create(model=MODEL, messages=messages)
    answered = answer.choices[0].message.model_dump()
    follow_up = [*messages, answered, {"role": "user", "content": "c"}]
    await client.chat.completions.create(model=MODEL, messages=follow_up)
    text = "".join(chr(one) for one in service.requests[1].prompt_token_ids)
    assert text.startswith("<system>be kind<user>a\nb<assistant>abc")
    assert text.endswith("xyz<user>c<assistant>")


async def test_streamed_chat(client):
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        n=2,
        max_completion_tokens=3,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = [chunk async for chunk in stream]
    assert last.choices == [] and last.usage.completion_tokens == 6
    assert chunks[0].object == "chat.completion.chunk"
    for index in range(2):
        own = [c.choices[0] for c in chunks if c.choices[0].index == index]
        assert [choice.delta.role for choice in own] == ["assistant", None, None]
        assert "".join(choice.delta.content for choice in own) == "abc"
        assert [choice.finish_reason for choice in own] == [None, None, "length"]


async def test_chat_stream_helper(client, service):
    service.token_limit = 4
    async with client.chat.completions.stream(model=MODEL, messages=HELLO, logprobs=True) as stream:
        async for _ in stream:
            pass
        answer = await stream.get_final_completion()
    assert answer.choices[0].message.content == "abcd"
    assert [one.token for one in answer.choices[0].logprobs.content] == list("abcd")


async def test_chat_logprobs(client):
    answer = await client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=1, logprobs=True, top_logprobs=3
    )
    (position,) = answer.choices[0].logprobs.content
    assert (position.token, position.bytes, position.logprob) == ("a", [97], -0.5)
    assert [(one.token, one.logprob) for one in position.top_logprobs] == [
        ("a", -0.5),
        ("b", -1.5),
        ("c", -9999.0),
    ]


async def test_our_own_fields_through_extra_body(client, service):
    extra = {"top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True}
    extra["min_tokens"] = 2
    await client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=extra)
    sampling = service.requests[0].sampling
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (3, 0.1, 1.1)
    assert (sampling.stop_token_ids, sampling.min_tokens) == ((), 2)


async def test_token_ids_without_a_tokenizer(bare_service, serve):
    url = await serve(bare_service)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        answer = await client.completions.create(
            model=MODEL, prompt=[5, 6], max_tokens=2, logprobs=1
        )
    assert answer.choices[0].text == ""
    assert answer.choices[0].logprobs.tokens == ["token_id:97", "token_id:98"]


async def test_models(client):
    (entry,) = (await client.models.list()).data
    assert (entry.id, entry.object, entry.created) == (MODEL, "model", 1_700_000_000)
    assert (entry.max_model_len, entry.vocabulary_size) == (200, 300)
    assert (await client.models.retrieve(MODEL)).id == MODEL


async def test_error_classes(client, service):
    with pytest.raises(openai.NotFoundError, match="tiny/model"):
        await client.completions.create(model="gpt-9", prompt="hi")
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("gpt-9")
    with pytest.raises(openai.BadRequestError, match="temperature") as caught:
        await client.chat.completions.create(model=MODEL, messages=HELLO, temperature=-1)
    assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model=MODEL, prompt="hi" * 5000)
    assert caught.value.code == "context_length_exceeded"
    service.unready_reason = "The ring is loading: try again soon."
    with pytest.raises(openai.InternalServerError, match="loading") as caught:
        await client.completions.create(model=MODEL, prompt="hi")
    assert caught.value.status_code == 503


@pytest.mark.parametrize("n", [1, 3])
async def test_a_failure_in_the_middle_of_a_stream(client, service, n):
    service.failure, service.events_before_failure = RuntimeError("secret"), 2
    stream = await client.completions.create(model=MODEL, prompt="hi", n=n, stream=True)
    texts = []
    with pytest.raises(openai.APIError, match="The server failed"):
        async for chunk in stream:
            texts.append(chunk.choices[0].text)
    assert len(texts) == 2 * n
    for _ in range(n):
        await service.closed.acquire()
