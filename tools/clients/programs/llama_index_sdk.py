"""LlamaIndex over OpenAI's dialect."""

import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Weather(BaseModel):
    """Weather of a town."""

    town: str
    degrees: int


def get_weather(town: str) -> str:
    """Weather of a town."""
    return f"{town}: 21 degrees"


url, model = sys.argv[1:3]
llm = OpenAILike(
    model=model,
    api_base=f"{url}/v1",
    api_key="none",
    max_retries=0,
    context_window=32768,
    is_chat_model=True,
    is_function_calling_model=True,
)
ask = "How warm is it in Oldford?"
assert "21" in llm.complete(ask).text
assert "21" in "".join(one.delta or "" for one in llm.stream_chat([ChatMessage(ask)]))
print("ok complete, stream_chat", flush=True)
assert llm.as_structured_llm(Weather).complete(ask).raw.degrees == 21
print("ok structured", flush=True)
for required in (False, True):
    tools = [FunctionTool.from_defaults(get_weather)]
    answer = llm.chat_with_tools(tools, user_msg=ask, tool_required=required)
    assert llm.get_tool_calls_from_response(answer)[0].tool_kwargs["town"] == "Oldford"
    print("ok tools, required:", required, flush=True)
