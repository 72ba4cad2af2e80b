"""AutoGen: its client, and its assistant with a tool."""

import asyncio

from asked import ASK, MODEL, URL, Weather, get_weather, tried, tried_too_long
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient

client = OpenAIChatCompletionClient(
    model=MODEL,
    base_url=f"{URL}/v1",
    api_key="none",
    max_retries=0,
    model_info={
        "vision": False,
        "function_calling": True,
        "json_output": True,
        "structured_output": True,
        "family": "unknown",
    },
)
loop = asyncio.new_event_loop()


def asked(text=ASK, **fields):
    messages = [UserMessage(content=text, source="user")]
    return loop.run_until_complete(client.create(messages, **fields)).content


async def streamed():
    pieces = client.create_stream([UserMessage(content=ASK, source="user")])
    return "".join([one async for one in pieces if isinstance(one, str)])


tried("create", "21" in asked())
tried("json_output", '"degrees": 21' in asked(json_output=Weather))
tried("create_stream", "21" in loop.run_until_complete(streamed()))
for reflects in (False, True):
    agent = AssistantAgent(
        "a", model_client=client, tools=[get_weather], reflect_on_tool_use=reflects
    )
    last = loop.run_until_complete(agent.run(task=ASK)).messages[-1]
    tried("agent, reflecting" if reflects else "agent", "21" in last.content)
tried_too_long(asked)
