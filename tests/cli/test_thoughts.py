"""`molink chat` with a model that thinks before it answers."""

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from click.testing import CliRunner

from molink.cli.client.chat import chat
from molink.serving.service import GenerationRequest
from molink.serving.token_events import TokenEvent
from tests.scripted_server import CARD, CountingService, WordTokenizer


class ThinkingService(CountingService):
    """Thinks of a colour code, and answers."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        self.requests.append(request)
        for text in ("<think>\n", "A \x1b[31mcode?", "\n</think>\n\n", "No."):
            yield TokenEvent((1,), text)
        yield TokenEvent((1,), "", finish_reason="stop")


@pytest.fixture
def service() -> ThinkingService:
    tokenizer = WordTokenizer(chat_template="{{ messages }}</think>")
    return ThinkingService(card=replace(CARD, tokenizer=tokenizer))


def test_thoughts_go_to_standard_error_and_not_into_the_conversation(url, service):
    result = CliRunner().invoke(chat, ["--url", url], input="Is it red?\nAgain?\n")
    assert result.exit_code == 0, result.output
    assert result.stdout == "No.\nNo.\n"
    assert result.stderr.splitlines()[0].startswith("A ")
    assert "\x1b" not in result.stderr
    prompt = "".join(chr(one) for one in service.requests[1].prompt_token_ids)
    assert "".join(chr(ord(one) % 100) for one in "[assistant]No.") in prompt
