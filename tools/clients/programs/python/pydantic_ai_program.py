"""Pydantic AI with its three kinds of output, over chat and responses."""

from asked import ASK, MODEL, URL, Weather, get_weather, tried, tried_too_long
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
for kind in (OpenAIChatModel, OpenAIResponsesModel):
    model, where = kind(MODEL, provider=provider), kind.__name__
    tried(f"{where} text", "21" in Agent(model).run_sync(ASK).output)
    tried(f"{where} tool", "21" in Agent(model, tools=[get_weather]).run_sync(ASK).output)
    for output in (NativeOutput(Weather), ToolOutput(Weather)):
        answer = Agent(model, output_type=output).run_sync(ASK).output
        tried(f"{where} {type(output).__name__}", answer.degrees == 21)
    tried_too_long(Agent(model).run_sync, what=f"{where} too long")
