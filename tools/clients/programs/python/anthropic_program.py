"""Anthropic's own client: messages, streams, tools, counting."""

import anthropic
from asked import ASK, MODEL, URL, tried, tried_too_long

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
ask = [{"role": "user", "content": ASK}]
schema = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
tool = {"name": "get_weather", "description": "Weather.", "input_schema": schema}
asked = {"model": MODEL, "max_tokens": 200, "messages": ask}

tried("models", client.models.list().data[0].id == MODEL)
tried("messages", "21" in client.messages.create(**asked).content[0].text)
with client.messages.stream(**asked) as stream:
    tried("stream", "21" in stream.get_final_text())
tried("count_tokens", client.messages.count_tokens(model=MODEL, messages=ask).input_tokens > 0)
for choice in ({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "get_weather"}):
    answer = client.messages.create(**asked, tools=[tool], tool_choice=choice)
    use = answer.content[-1]
    tried(f"tool_choice {choice['type']}", use.input["town"] == "Oldford")
result = {"type": "tool_result", "tool_use_id": use.id, "content": "21"}
turn = [
    *ask,
    {"role": "assistant", "content": answer.content},
    {"role": "user", "content": [result]},
]
answer = client.messages.create(**{**asked, "messages": turn}, tools=[tool])
tried("tool result", "21" in answer.content[0].text)
tried_too_long(
    lambda text: client.messages.create(**{**asked, "messages": [{**ask[0], "content": text}]}),
    anthropic.BadRequestError,
)
