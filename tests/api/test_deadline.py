"""A client's own deadline: an answer that ends there, or an error that says so."""

import openai
import pytest

CHAT = [{"role": "user", "content": "hi"}]
SOON = {"timeout_s": 1e-6}
"""Over when its request has been read."""


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_came_in_time(client, service, stream):
    service.events_before_hold = 0
    with pytest.raises(openai.InternalServerError, match="timeout_s") as caught:
        await client.completions.create(
            model="tiny/model", prompt="a", stream=stream, extra_body=SOON
        )
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    await service.closed.acquire()


async def test_what_came_is_answered(client, service):
    service.events_before_hold = 3
    answer = await client.chat.completions.create(
        model="tiny/model", messages=CHAT, extra_body=SOON
    )
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("abc", "length")
    assert choice.stop_reason == "deadline" and answer.usage.completion_tokens == 3
    await service.closed.acquire()


async def test_what_came_is_streamed(client, service):
    service.events_before_hold = 2
    stream = await client.completions.create(
        model="tiny/model", prompt="a", stream=True, extra_body=SOON
    )
    choices = [chunk.choices[0] async for chunk in stream]
    assert [choice.text for choice in choices] == ["a", "b", ""]
    assert [choice.finish_reason for choice in choices] == [None, None, "length"]
    assert [choice.stop_reason for choice in choices] == [None, None, "deadline"]


async def test_an_answer_in_time_has_no_reason(client, service):
    answer = await client.completions.create(
        model="tiny/model", prompt="a", extra_body={"timeout_s": 3600}
    )
    assert (answer.choices[0].finish_reason, answer.choices[0].stop_reason) == ("length", None)
