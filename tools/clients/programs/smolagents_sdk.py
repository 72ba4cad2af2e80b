"""smolagents: its model and its agent that calls tools."""

import sys

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def get_weather(town: str) -> str:
    """Weather of a town.

    Args:
        town: Its name.
    """
    return f"{town}: 21 degrees"


url, name = sys.argv[1:3]
model = OpenAIModel(model_id=name, api_base=f"{url}/v1", api_key="none")
ask = [{"role": "user", "content": [{"type": "text", "text": "How warm is it in Oldford?"}]}]
assert "21" in model(ask).content
print("ok model", flush=True)
agent = ToolCallingAgent(tools=[get_weather], model=model, max_steps=4)
assert agent.run("How warm is it in Oldford?")
print("ok ToolCallingAgent", flush=True)
