"""LangChain over OpenAI's dialects."""

import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Weather(BaseModel):
    """Weather of a town."""

    town: str
    degrees: int


@tool
def get_weather(town: str) -> str:
    """Weather of a town."""
    return f"{town}: 21 degrees"


url, model = sys.argv[1:3]
ask = "How warm is it in Oldford?"
for responses in (False, True):
    chat = ChatOpenAI(
        base_url=f"{url}/v1",
        api_key="none",
        model=model,
        max_retries=0,
        use_responses_api=responses,
    )
    where = "responses" if responses else "chat"
    assert "21" in chat.invoke(ask).text
    assert "21" in "".join(one.text for one in chat.stream(ask))
    print("ok", where, "invoke, stream", flush=True)
    for method in ("json_schema", "function_calling"):
        assert chat.with_structured_output(Weather, method=method).invoke(ask).degrees == 21
        print("ok", where, method, flush=True)
    for choice in ("auto", "any"):
        bound = chat.bind_tools([get_weather], tool_choice=choice)
        first = bound.invoke(ask)
        assert first.tool_calls[0]["args"]["town"] == "Oldford"
        print("ok", where, "tool_choice", choice, flush=True)
    result = ToolMessage("21 degrees", tool_call_id=first.tool_calls[0]["id"])
    last = chat.bind_tools([get_weather]).invoke([HumanMessage(ask), first, result])
    assert "21" in last.text
    print("ok", where, "tool result", flush=True)
