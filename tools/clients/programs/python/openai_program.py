"""OpenAI's own client: chat, tools, structured output, completions, responses."""

import json

import openai
from asked import ASK, MODEL, URL, Weather, tried, tried_too_long

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
ask = [{"role": "user", "content": ASK}]
parameters = Weather.model_json_schema()
tool = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}

tried("models", client.models.list().data[0].id == MODEL)
answer = client.chat.completions.create(model=MODEL, messages=ask)
tried("chat", "21" in answer.choices[0].message.content)
chunks = client.chat.completions.create(
    model=MODEL, messages=ask, stream=True, stream_options={"include_usage": True}
)
chunks = list(chunks)
said = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
tried("stream", "21" in said and chunks[-1].usage.completion_tokens > 0)
for choice in ("auto", "required", {"type": "function", "function": {"name": "get_weather"}}):
    answer = client.chat.completions.create(
        model=MODEL, messages=ask, tools=[tool], tool_choice=choice
    )
    call = answer.choices[0].message.tool_calls[0]
    tried(
        f"tool_choice {choice if isinstance(choice, str) else 'named'}",
        json.loads(call.function.arguments)["town"],
    )
turn = [*ask, answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "21"}]
answer = client.chat.completions.create(model=MODEL, messages=turn, tools=[tool])
tried("tool result", "21" in answer.choices[0].message.content)
answer = client.chat.completions.parse(model=MODEL, messages=ask, response_format=Weather)
tried("parse", answer.choices[0].message.parsed.degrees == 21)
answer = client.completions.create(model=MODEL, prompt="How warm?", max_tokens=4, logprobs=2)
tried("completions", answer.choices[0].finish_reason == "length")
answer = client.responses.create(model=MODEL, input=ASK)
tried("responses", "21" in answer.output_text)
with client.responses.stream(model=MODEL, input="How warm?") as stream:
    events = [one.type for one in stream]
tried("responses stream", events[-1] == "response.completed")
answer = client.responses.parse(model=MODEL, input="How warm?", text_format=Weather)
tried("responses parse", answer.output_parsed.town == "Oldford")
tried_too_long(
    lambda text: client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": text}]
    ),
    openai.BadRequestError,
)
