"""`best_of`: more answers are made than given, and the likeliest per token are given."""

import openai
import pytest

from molink.serving.token_events import TokenEvent, TokenLogprob
from tests.api.conftest import FakeService

LOGPROBS = {0: (-3.0,), 1: (-1.0, -1.0, -1.0), 2: (-0.5, -2.0), 3: (-2.0,)}
"""Of the tokens of each answer by its number; as sums the last would win."""


class Ranked(FakeService):
    """Answers with a number as often as it has tokens, as likely as LOGPROBS says."""

    def _event(self, request, position) -> TokenEvent:
        number = (len(self.requests) - 1) % len(LOGPROBS)
        logprobs = LOGPROBS[number]
        if request.sampling.logprobs is None:
            logprobs = (None,) * len(logprobs)
        shown = [TokenLogprob(number, one, ()) for one in logprobs if one is not None]
        return TokenEvent(
            (number,) * len(logprobs), str(number) * len(logprobs), tuple(shown), "stop"
        )


@pytest.fixture
async def client(serve):
    url = await serve(Ranked(token_limit=1))
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


BEST_FIRST = ["111", "22", "3", "0"]


@pytest.mark.parametrize("n", [1, 2, 3])
async def test_the_best_are_given_best_first(client, n):
    answer = await client.completions.create(model="tiny/model", prompt="a", n=n, best_of=4)
    assert [choice.text for choice in answer.choices] == BEST_FIRST[:n]
    assert [choice.index for choice in answer.choices] == list(range(n))
    assert all(choice.logprobs is None for choice in answer.choices)
    assert answer.usage.completion_tokens == 7, "all that were made are counted"


async def test_each_prompt_has_its_own_best(client):
    answer = await client.completions.create(
        model="tiny/model", prompt=["a", "b"], best_of=4, logprobs=0
    )
    assert [choice.text for choice in answer.choices] == ["111", "111"]
    assert [choice.logprobs.token_logprobs for choice in answer.choices] == [[-1.0] * 3] * 2


async def test_as_many_as_are_asked_for_is_no_ranking(client):
    answer = await client.completions.create(model="tiny/model", prompt="a", n=4, best_of=4)
    assert [choice.text for choice in answer.choices] == ["0", "111", "22", "3"]


def test_the_script_ranks_otherwise_by_sums():
    sums = {number: sum(one) for number, one in LOGPROBS.items()}
    assert max(sums, key=sums.get) == 3
