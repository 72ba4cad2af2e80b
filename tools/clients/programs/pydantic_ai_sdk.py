"""Pydantic AI with its three kinds of output, over chat and responses."""

import sys

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Weather(BaseModel):
    """Weather of a town."""

    town: str
    degrees: int


def get_weather(town: str) -> str:
    """Weather of a town."""
    return f"{town}: 21 degrees"


url, name = sys.argv[1:3]
provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
ask = "How warm is it in Oldford?"
for kind in (OpenAIChatModel, OpenAIResponsesModel):
    model = kind(name, provider=provider)
    assert "21" in Agent(model).run_sync(ask).output
    assert "21" in Agent(model, tools=[get_weather]).run_sync(ask).output
    print("ok", kind.__name__, "text, tool", flush=True)
    for output in (NativeOutput(Weather), ToolOutput(Weather)):
        assert Agent(model, output_type=output).run_sync(ask).output.degrees == 21
        print("ok", kind.__name__, type(output).__name__, flush=True)
