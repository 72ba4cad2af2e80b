"""smolagents: its model and its agent that calls tools."""

from asked import ASK, MODEL, URL, tried, tried_too_long
from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def get_weather(town: str) -> str:
    """Weather of a town.

    Args:
        town: Its name.
    """
    return f"{town}: 21 degrees"


model = OpenAIModel(model_id=MODEL, api_base=f"{URL}/v1", api_key="none")


def asked(text):
    return model([{"role": "user", "content": [{"type": "text", "text": text}]}]).content


tried("model", "21" in asked(ASK))
streamed = model.generate_stream([{"role": "user", "content": ASK}])
tried("stream", "21" in "".join(one.content or "" for one in streamed))
tried("agent", ToolCallingAgent(tools=[get_weather], model=model, max_steps=4).run(ASK))
tried_too_long(asked)
