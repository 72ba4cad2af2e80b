"""OpenAI's agents library, over responses and chat."""

import asyncio

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from asked import ASK, MODEL, URL, Weather, get_weather, tried, tried_too_long
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
loop = asyncio.new_event_loop()


def asked(text=ASK, **fields):
    return loop.run_until_complete(Runner.run(Agent(name="a", **fields), text)).final_output


for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
    where, model = kind.__name__, kind(model=MODEL, openai_client=client)
    tools = [function_tool(get_weather)]
    tried(f"{where} tool", "21" in asked(model=model, tools=tools))
    tried(f"{where} output_type", asked(model=model, output_type=Weather).degrees == 21)
    forced = ModelSettings(tool_choice="required")
    tried(f"{where} required", "21" in asked(model=model, tools=tools, model_settings=forced))
    both = asked(model=model, tools=tools, output_type=Weather, model_settings=forced)
    tried(f"{where} tool and output_type", both.degrees == 21)
    hints = ModelSettings(truncation="auto", verbosity="low", top_logprobs=2)
    tried(f"{where} settings", "21" in asked(model=model, model_settings=hints))
    tried_too_long(lambda text, model=model: asked(text, model=model), what=f"{where} too long")
