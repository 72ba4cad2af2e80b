"""`cache_control` with the official client, as it is: what stays cached, and what is told of it."""

from dataclasses import dataclass, replace

import anthropic
import pytest

from molink.api.headers.ignored_fields import IGNORED_HEADER
from tests.api.scripted import SCHEMA, ScriptedService

SHORT, LONG = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
TOOL = {"name": "weather", "description": "Of a city.", "input_schema": SCHEMA}
ASKED = {"model": "tiny/model", "max_tokens": 200}


@dataclass
class CachingService(ScriptedService):
    """Takes all wishes, and has so many tokens of each prompt cached."""

    cached: int = 0

    def _event(self, request, position):
        request.timeline.attempts[-1].wishes = request.wishes
        request.timeline.cached_tokens = self.cached
        return super()._event(request, position)


@pytest.fixture
def service():
    return CachingService()


@pytest.fixture
async def client(service, serve):
    url = await serve(service)
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def text(said, control=None):
    return {"type": "text", "text": said} | ({"cache_control": control} if control else {})


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def kept(service):
    """The texts that the last request wished to keep, and for how long."""
    prompt = service.prompts[-1]
    return [(prompt[:tokens], keep_s) for tokens, keep_s in service.requests[-1].wishes]


async def test_a_mark_on_the_last_block_keeps_the_whole_prompt(client, service):
    await client.messages.create(**ASKED, messages=[user(text("hi", SHORT))])
    assert kept(service) == [("<user>hi<assistant>", 300)]


async def test_a_mark_beside_the_conversation_stands_at_its_end(client, service):
    await client.messages.create(**ASKED, messages=[user(text("hi"))], cache_control=LONG)
    assert kept(service) == [("<user>hi<assistant>", 3600)]


async def test_each_mark_keeps_what_stands_up_to_its_block(client, service):
    answer = [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "1", "name": "weather", "input": {}},
    ]
    result = {"type": "tool_result", "tool_use_id": "1", "content": "rain", "cache_control": SHORT}
    await client.messages.create(
        **ASKED,
        tools=[TOOL | {"cache_control": LONG}],
        system=[text("Be kind.", LONG), text("It is May.")],
        messages=[
            user(text("a"), text("b")),
            {"role": "assistant", "content": answer},
            user(result),
            user(text("and c"), text("d", SHORT), text("e")),
        ],
    )
    whole = (
        "[weather]<system>Be kind.\nIt is May.<user>a\nb<assistant>I look."
        "<tool_call>weather {}</tool_call><tool>rain<user>and c\nd\ne<assistant>"
    )
    assert service.prompts == [whole]
    assert kept(service) == [
        (whole[: whole.index("a\nb<")], 3600),
        (whole[: whole.index("\nIt is")], 3600),
        (whole[: whole.index("<user>and c")], 300),
        (whole[: whole.index("\ne<")], 300),
    ]


async def test_a_mark_within_a_result_keeps_what_stands_up_to_its_part(client, service):
    """On the last part of the last result it means the whole prompt, as one on the result does."""
    answer = [
        {"type": "tool_use", "id": str(number), "name": "weather", "input": {}} for number in (1, 2)
    ]
    results = [
        {"type": "tool_result", "tool_use_id": str(number), "content": parts}
        for number, parts in (
            (1, [text("rain", LONG), text("wind")]),
            (2, [text("sun", SHORT), text("haze", SHORT)]),
        )
    ]
    messages = [user(text("a")), {"role": "assistant", "content": answer}, user(*results)]
    await client.messages.create(**ASKED, tools=[TOOL], messages=messages)
    (whole,) = service.prompts
    assert kept(service) == [
        (whole[: whole.index("\nwind")], 3600),
        (whole[: whole.index("\nhaze")], 300),
        (whole, 300),
    ]


async def test_without_a_mark_nothing_is_wished(client, service):
    answer = await client.messages.create(**ASKED, messages=[user(text("hi"))])
    assert (service.requests[0].wishes, answer.usage.cache_creation_input_tokens) == ((), 0)
    assert answer.usage.input_tokens == len(service.prompts[0])


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("cached", "long", "short"),
    [(0, 48, 96), (32, 16, 96), (64, 0, 80), (144, 0, 0), (150, 0, 0)],
)
async def test_a_prompt_is_told_as_read_written_and_the_rest(
    client, service, stream, cached, long, short
):
    """Of 162 tokens 48 are to stay an hour and 144 five minutes, in whole blocks."""
    service.cached = cached
    asked = ASKED | {
        "system": [text("s" * 45, LONG)],
        "messages": [user(text("b" * 90, SHORT), text("c"))],
    }
    if stream:
        async with client.messages.stream(**asked) as events:
            usage = (await events.get_final_message()).usage
    else:
        usage = (await client.messages.create(**asked)).usage
    written = long + short
    assert usage.cache_read_input_tokens == cached
    assert usage.cache_creation_input_tokens == written
    assert usage.input_tokens == len(service.prompts[0]) - cached - written
    if not stream:  # Its events tell of no more than the sum.
        assert usage.cache_creation.ephemeral_1h_input_tokens == long
        assert usage.cache_creation.ephemeral_5m_input_tokens == short


async def test_a_ring_that_caches_nothing_has_written_nothing(serve, http):
    service = ScriptedService()
    body = ASKED | {"messages": [user(text("b" * 90, SHORT))]}
    async with http.post(f"{await serve(service)}/v1/messages", json=body) as response:
        usage = (await response.json())["usage"]
    assert service.requests[0].wishes == ((len(service.prompts[0]), 300),)
    assert (usage["cache_creation_input_tokens"], usage["input_tokens"]) == (0, 107)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            {"messages": [user(*(text("a", SHORT) for _ in range(400)))]},
            "A maximum of 4 blocks with cache_control may be provided. Found 400",
        ),
        (
            {"messages": [user(*(text("a", SHORT) for _ in range(4)))], "cache_control": SHORT},
            "A maximum of 4 blocks with cache_control may be provided. Found 5",
        ),
        (
            {"system": [text("a", SHORT)], "messages": [user(text("b")), user(text("c", LONG))]},
            "messages.1.content.0.cache_control.ttl: a ttl='1h' cache_control block must not come "
            "after a ttl='5m' cache_control block",
        ),
        (
            {"messages": [user(text("a", {"type": "ephemeral", "ttl": "2h"}))]},
            "'messages.0.content.0.cache_control.ttl' must be '5m' or '1h'",
        ),
        (
            {"messages": [user(text("a", {"type": "eternal"}))]},
            "'messages.0.content.0.cache_control.type' must be 'ephemeral'",
        ),
    ],
)
async def test_marks_that_cannot_be_followed_are_refused_in_a_sentence(
    client, service, asked, words
):
    with pytest.raises(anthropic.BadRequestError) as error:
        await client.messages.create(**ASKED, **asked)
    assert error.value.body["type"] == "error"
    assert error.value.body["error"]["type"] == "invalid_request_error"
    assert words in error.value.body["error"]["message"]
    assert not service.requests


async def test_what_is_followed_is_not_named_as_ignored(service, serve, http):
    body = ASKED | {
        "tools": [TOOL | {"cache_control": SHORT}],
        "system": [text("a", SHORT)],
        "messages": [user(text("b", SHORT | {"scope": "global"}))],
    }
    async with http.post(f"{await serve(service)}/v1/messages", json=body) as response:
        assert response.headers[IGNORED_HEADER] == "messages.content.cache_control.scope"


async def test_a_template_that_refuses_the_beginning_leaves_the_wish_out(serve, http):
    """This one wants an even number of messages behind the first."""
    service = CachingService()
    odd = "{% if messages | length == 2 %}{{ nothing() }}{% endif %}"
    tokenizer = service.card.tokenizer
    refusing = replace(tokenizer, chat_template=odd + tokenizer.chat_template)
    service.card = replace(service.card, tokenizer=refusing)
    assistant = {"role": "assistant", "content": [text("b", SHORT)]}
    body = ASKED | {"messages": [user(text("a")), assistant, user(text("c", SHORT))]}
    async with http.post(f"{await serve(service)}/v1/messages", json=body) as response:
        assert response.status == 200
    assert [keep_s for _, keep_s in service.requests[0].wishes] == [300]
