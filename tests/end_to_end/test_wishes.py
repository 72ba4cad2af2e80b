"""A chat that Anthropic's client marks stays cached on a real ring, while others turn it over."""

import anthropic
import pytest

SHORT = {"cache_control": {"type": "ephemeral"}}


@pytest.fixture(scope="module")
def server(tools):
    """Without host memory, where what nobody marked would stay as well."""
    options = ("--nodes", "2", "--kv-tokens", "1024", "--cache-ram-gb", "0")
    with tools.serving("demo", *options) as server:
        yield server


def system(name, mark=None):
    rules = " ".join(f"{name} rule {at}: keep it short." for at in range(20))
    return [{"type": "text", "text": rules, **(mark or {})}]


@pytest.mark.parametrize("mark", [SHORT, None], ids=["marked", "unmarked"])
async def test_a_marked_beginning_outlives_a_flood_of_others(server, mark):
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none") as client:

        async def ask(beginning, said):
            said = [{"role": "user", "content": said}]
            answer = await client.messages.create(
                model="demo", system=beginning, messages=said, max_tokens=4
            )
            return answer.usage

        name = "Marked" if mark else "Plain"
        first = await ask(system(name, mark), "Hello.")
        for number in range(8):
            await ask(system(f"Other {number}"), "Hello.")
        again = await ask(system(name, mark), "And now?")
    assert first.cache_read_input_tokens == 0
    assert again.cache_creation_input_tokens == 0
    assert first.input_tokens + first.cache_creation_input_tokens > 200
    if mark:
        assert first.cache_creation.ephemeral_5m_input_tokens > 200
        assert again.cache_read_input_tokens >= first.cache_creation_input_tokens
    else:
        assert first.cache_creation_input_tokens == again.cache_read_input_tokens == 0
