"""A model that writes what a test has written: Hermes' format for tools, thoughts in tags."""

from dataclasses import dataclass, field, replace
from typing import Any

from molink.serving.model_card import ModelCard
from molink.serving.token_events import TokenEvent
from tests.api.conftest import CARD, CharTokenizer, FakeService

TEMPLATE = (
    "{% if tools %}[{{ tools | map(attribute='function.name') | join(',') }}]{% endif %}"
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}"
    "{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>"
    "{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def card() -> ModelCard:
    return replace(CARD, model_len_max=2000, tokenizer=CharTokenizer(chat_template=TEMPLATE))


@dataclass
class ScriptedService(FakeService):
    """Answers with `script`, a character an event, and ends it by itself."""

    script: str = "Hello there."
    card: ModelCard = field(default_factory=card)
    stop_reason: str | None = None

    def __post_init__(self) -> None:
        self.says(self.script)

    def says(self, script: str) -> None:
        """Answer with this from now on."""
        self.script, self.token_limit = script, len(script)

    def _event(self, request: Any, position: int) -> TokenEvent:
        event = super()._event(request, position)
        char = self.script[position]
        ended = event.finish_reason == "stop"
        return replace(
            event,
            token_ids=(ord(char),),
            text=char,
            logprobs=tuple(replace(one, token_id=ord(char)) for one in event.logprobs),
            stop_reason=self.stop_reason if ended else None,
        )

    @property
    def prompts(self) -> list[str]:
        """The texts that were to be continued."""
        return ["".join(map(chr, one.prompt_token_ids)) for one in self.requests]
