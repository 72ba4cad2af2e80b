"""`echo` and `prompt_logprobs`: the prompt in its answers, as vLLM's server gives it."""

import openai
import pytest

MODEL = "tiny/model"


@pytest.fixture
async def client(service, serve):
    url = await serve(service)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_the_prompt_comes_first(client):
    answer = await client.completions.create(
        model=MODEL, prompt=["hi", "yo"], echo=True, n=2, max_tokens=2
    )
    assert [choice.text for choice in answer.choices] == ["hiab", "hiab", "yoab", "yoab"]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 8)


async def test_token_ids_are_shown_as_text(client):
    answer = await client.completions.create(
        model=MODEL, prompt=[ord("h"), ord("o")], echo=True, max_tokens=1
    )
    assert answer.choices[0].text == "hoa"


async def test_it_has_log_probabilities(client, service):
    answer = await client.completions.create(
        model=MODEL, prompt="hi", echo=True, max_tokens=1, logprobs=1
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens == ["\x01", "h", "i", "a"]
    assert logprobs.token_logprobs == [None, -1.0, -1.0, -0.5]
    assert logprobs.top_logprobs == [None, {"h": -1.0}, {"i": -1.0}, {"a": -0.5}]
    assert logprobs.text_offset == [0, 1, 2, 3]
    assert service.requests[0].sampling.prompt_logprobs == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_only_the_prompt(client, stream):
    got = await client.completions.create(
        model=MODEL,
        prompt="hi",
        echo=True,
        max_tokens=0,
        logprobs=0,
        stream=stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
    )
    parts = [part async for part in got] if stream else [got]
    (choice,) = [part.choices[0] for part in parts if part.choices]
    assert (choice.text, choice.finish_reason) == ("hi", "length")
    assert choice.logprobs.tokens == ["\x01", "h", "i"]
    assert parts[-1].usage.completion_tokens == 0


async def test_a_stream_begins_with_the_prompt(client):
    stream = await client.completions.create(
        model=MODEL, prompt="hi", echo=True, max_tokens=2, logprobs=0, stream=True
    )
    choices = [chunk.choices[0] async for chunk in stream]
    assert [choice.text for choice in choices] == ["hia", "b"]
    assert [choice.logprobs.text_offset for choice in choices] == [[0, 1, 2, 3], [4]]


async def test_prompt_logprobs(client, service):
    answer = await client.completions.create(
        model=MODEL, prompt="hi", max_tokens=1, extra_body={"prompt_logprobs": 2}
    )
    (choice,) = answer.choices
    assert (choice.text, choice.logprobs) == ("a", None)
    first, *others = choice.prompt_logprobs
    assert first is None
    assert others == [
        {
            str(ord(char)): {"logprob": -1.0, "rank": 1, "decoded_token": char},
            str(ord(char) + 1): {"logprob": -1.5, "rank": 2, "decoded_token": chr(ord(char) + 1)},
        }
        for char in "hi"
    ]
    assert service.requests[0].sampling.logprobs is None


async def test_without_it_there_are_none(client, service):
    answer = await client.completions.create(model=MODEL, prompt="hi", echo=True)
    assert not hasattr(answer.choices[0], "prompt_logprobs")
    assert service.requests[0].sampling.prompt_logprobs is None


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt": "x" * 190, "prompt_logprobs": 20, "n": 16, "best_of": 16}, None),
        ({"echo": "yes"}, "echo"),
    ],
)
async def test_what_does_not_go_together(service, serve, http, extra, param):
    url = await serve(service)
    body = {"prompt": "hi", "max_tokens": 1} | extra
    async with http.post(f"{url}/v1/completions", json=body) as response:
        answer = await response.json()
    assert response.status == (400 if param else 200), answer
    assert param is None or answer["error"]["param"] == param


async def test_an_answer_of_too_many_is_refused(service, serve, http, monkeypatch):
    monkeypatch.setattr("molink.api.openai.logprobs.SCORES_MAX", 100)
    body = {"prompt": "x" * 49, "prompt_logprobs": 1}
    url = await serve(service)
    for extra, status in (({}, 200), ({"n": 2}, 400), ({"prompt_logprobs": 2}, 400)):
        async with http.post(f"{url}/v1/completions", json=body | extra) as response:
            assert response.status == status


HELLO = [{"role": "user", "content": "hi"}]


async def test_prompt_logprobs_of_a_conversation(client, service):
    answer = await client.chat.completions.create(
        model=MODEL, messages=HELLO, n=2, max_tokens=1, extra_body={"prompt_logprobs": 0}
    )
    first, *others = answer.prompt_logprobs
    prompt = "<user>hi<assistant>"
    assert first is None
    assert [next(iter(one.values()))["decoded_token"] for one in others] == list(prompt[1:])
    assert others[0] == {
        str(ord("u")): {"logprob": -1.0, "rank": 1, "decoded_token": "u"},
    }
    assert not hasattr(answer.choices[0], "prompt_logprobs"), "it stands beside the choices"
    asked = [one.sampling.prompt_logprobs for one in service.requests]
    assert asked == [0, None], "the prompt is scored once"
    plain = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1)
    assert not hasattr(plain, "prompt_logprobs")


async def test_prompt_logprobs_without_a_tokenizer(bare_service, serve, http):
    url = await serve(bare_service)
    body = {"prompt_token_ids": [5, 6], "max_tokens": 1, "prompt_logprobs": 1}
    async with http.post(f"{url}/generate", json=body) as response:
        answer = await response.json()
    alternative = {"logprob": -1.0, "rank": 1, "decoded_token": "token_id:6"}
    assert answer["prompt_logprobs"] == [None, {"6": alternative}]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", {"messages": HELLO}), ("/generate", {"prompt": "hi"})],
)
async def test_a_stream_or_too_many_are_refused(service, serve, http, monkeypatch, path, body):
    monkeypatch.setattr("molink.api.openai.logprobs.SCORES_MAX", 40)
    url = await serve(service)
    cases = [({"prompt_logprobs": 0}, 200), ({"prompt_logprobs": 20}, 400)]
    for extra, status in [*cases, ({"prompt_logprobs": 0, "stream": True}, 400)]:
        async with http.post(f"{url}{path}", json=body | extra) as response:
            answer = await response.json()
        assert response.status == status
        assert status == 200 or answer["error"]["param"] == "prompt_logprobs"
