"""Token ids of prompts and conversations, and back, in vLLM's shapes."""

import pytest

MODEL = "tiny/model"
HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
def ask(service, serve, http):
    async def ask(path, body, status=200, of=service):
        url = await serve(of)
        async with http.post(f"{url}{path}", json=body) as response:
            assert response.status == status, await response.text()
            return await response.json()

    return ask


def ids(text: str) -> list[int]:
    return [ord(char) for char in text]


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"prompt": "hi"}, [1, *ids("hi")]),
        ({"prompt": "hi", "add_special_tokens": False}, ids("hi")),
        ({"prompt": ""}, [1]),
        ({"prompt": "", "add_special_tokens": False}, []),
        ({"messages": HELLO}, ids("<user>hi<assistant>")),
        ({"messages": HELLO, "add_special_tokens": True}, [1, *ids("<user>hi<assistant>")]),
    ],
)
async def test_tokens_are_those_that_generation_would_start_from(ask, fields, tokens):
    answer = await ask("/tokenize", {"model": MODEL, **fields})
    assert answer == {
        "count": len(tokens),
        "max_model_len": 200,
        "tokens": tokens,
        "token_strs": None,
    }


async def test_the_same_tokens_generate(ask, service, serve, http):
    tokens = (await ask("/tokenize", {"messages": HELLO}))["tokens"]
    url = await serve(service)
    body = {"messages": HELLO, "max_tokens": 1}
    async with http.post(f"{url}/v1/chat/completions", json=body) as response:
        assert response.status == 200
    assert list(service.requests[0].prompt_token_ids) == tokens


async def test_the_vocabularys_entries(ask):
    answer = await ask("/tokenize", {"prompt": "hi", "return_token_strs": True})
    assert answer["token_strs"] == ["<1>", "<104>", "<105>"]


@pytest.mark.parametrize(("tokens", "text"), [([1, 104, 105], "\x01hi"), ([], "")])
async def test_text_of_tokens(ask, tokens, text):
    assert await ask("/detokenize", {"model": MODEL, "tokens": tokens}) == {"prompt": text}


async def test_a_long_prompt_there_and_back(ask):
    text = "abc " * 20_000
    answer = await ask("/tokenize", {"prompt": text, "add_special_tokens": False})
    assert answer["count"] == 80_000, "more than the model's length is fine: it is only counted"
    assert (await ask("/detokenize", {"tokens": answer["tokens"]}))["prompt"] == text


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": HELLO}, "prompt"),
        ("/tokenize", {"prompt": ["x"]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [1, "x"]}, "tokens.1"),
        ("/detokenize", {"tokens": [300]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [2**70]}, "tokens"),
    ],
)
async def test_mistakes_are_named(ask, path, body, param):
    error = (await ask(path, body, status=400))["error"]
    assert error["param"] == param
    assert ": " in error["message"]


async def test_another_model_is_not_here(ask):
    error = (await ask("/tokenize", {"model": "gpt-9", "prompt": "x"}, status=404))["error"]
    assert error["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("path", "body"),
    [("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})],
)
async def test_a_model_without_a_tokenizer_has_no_text(ask, bare_service, path, body):
    error = (await ask(path, body, status=400, of=bare_service))["error"]
    assert "no tokenizer" in error["message"]
