"""OpenAI's agents library, over responses and chat."""

import asyncio
import sys

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel


class Weather(BaseModel):
    """Weather of a town."""

    town: str
    degrees: int


@function_tool
def get_weather(town: str) -> str:
    """Weather of a town."""
    return f"{town}: 21 degrees"


async def main(url, name):
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    ask = "How warm is it in Oldford?"
    for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
        model = kind(model=name, openai_client=client)
        agent = Agent(name="a", model=model, tools=[get_weather])
        assert "21" in (await Runner.run(agent, ask)).final_output
        print("ok", kind.__name__, "tool", flush=True)
        agent = Agent(name="a", model=model, output_type=Weather)
        assert (await Runner.run(agent, ask)).final_output.degrees == 21
        print("ok", kind.__name__, "output_type", flush=True)
        settings = ModelSettings(tool_choice="required")
        agent = Agent(name="a", model=model, tools=[get_weather], model_settings=settings)
        assert "21" in (await Runner.run(agent, ask)).final_output
        print("ok", kind.__name__, "required", flush=True)


asyncio.run(main(*sys.argv[1:3]))
