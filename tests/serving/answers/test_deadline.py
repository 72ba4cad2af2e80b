"""An answer ends at its deadline, and nothing goes on behind it."""

import asyncio

import pytest

from molink.errors import DeadlineError
from molink.serving.answers.deadline import until_deadline
from molink.serving.token_events import TokenEvent

LAST = TokenEvent((), "", finish_reason="length", stop_reason="deadline")


def token(number, finish_reason=None):
    return TokenEvent((number,), str(number), finish_reason=finish_reason)


class Source:
    """Gives some events, then waits for ever, and knows whether it was ended."""

    def __init__(self, *events):
        self.given, self.ended = events, False

    async def events(self):
        try:
            for event in self.given:
                yield event
            await asyncio.Event().wait()
        finally:
            self.ended = True


def now():
    return asyncio.get_running_loop().time()


async def test_nothing_has_come_till_then():
    source = Source()
    with pytest.raises(DeadlineError, match="timeout_s"):
        async for _ in until_deadline(source.events(), now()):
            pass
    assert source.ended


async def test_what_has_come_is_an_answer():
    source = Source(token(1), token(2))
    events = until_deadline(source.events(), now())
    assert [event async for event in events] == [token(1), token(2), LAST]
    assert source.ended


@pytest.mark.parametrize("after_s", [None, 1000.0])
async def test_an_answer_in_time_is_as_it_was(after_s):
    async def events():
        yield token(1)
        yield token(2, "stop")

    deadline_at = None if after_s is None else now() + after_s
    got = [event async for event in until_deadline(events(), deadline_at)]
    assert got == [token(1), token(2, "stop")]


async def test_a_time_out_of_its_own_is_none_of_the_deadline():
    async def events():
        yield token(1)
        raise TimeoutError

    with pytest.raises(TimeoutError):
        async for _ in until_deadline(events(), now() + 1000.0):
            pass
