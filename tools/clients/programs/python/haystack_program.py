"""Haystack's generators over chat and responses, and its agent."""

from asked import ASK, MODEL, URL, Weather, get_weather, tried, tried_too_long
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret

key = Secret.from_token("none")
settings = {"api_key": key, "model": MODEL, "api_base_url": f"{URL}/v1", "max_retries": 0}
tools = [create_tool_from_function(get_weather)]
for kind, form in (
    (OpenAIChatGenerator, {"response_format": Weather}),
    (OpenAIResponsesChatGenerator, {"text_format": Weather}),
):
    where, generator = kind.__name__, kind(**settings)

    def asked(text=ASK, generator=generator, **fields):
        return generator.run([ChatMessage.from_user(text)], **fields)["replies"][0]

    tried(f"{where} text", "21" in asked().text)
    pieces = []
    streamed = asked(streaming_callback=lambda one, pieces=pieces: pieces.append(one.content))
    tried(f"{where} stream", "21" in streamed.text and "21" in "".join(pieces))
    call = asked(tools=tools).tool_calls[0]
    tried(f"{where} tools", call.arguments["town"] == "Oldford")
    forced = asked(tools=tools, tools_strict=True, generation_kwargs={"tool_choice": "required"})
    tried(f"{where} required", forced.tool_calls[0].arguments["town"] == "Oldford")
    tried(f"{where} format", '"degrees": 21' in asked(generation_kwargs=form).text)
    said = Agent(chat_generator=generator, tools=tools).run([ChatMessage.from_user(ASK)])
    tried(f"{where} agent", "21" in said["last_message"].text)
    tried_too_long(asked, what=f"{where} too long")
