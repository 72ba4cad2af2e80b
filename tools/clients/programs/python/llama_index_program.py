"""LlamaIndex over OpenAI's dialect."""

from asked import ASK, MODEL, URL, Weather, get_weather, tried, tried_too_long
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

llm = OpenAILike(
    model=MODEL,
    api_base=f"{URL}/v1",
    api_key="none",
    max_retries=0,
    context_window=32768,
    is_chat_model=True,
    is_function_calling_model=True,
)
tried("complete", "21" in llm.complete(ASK).text)
deltas = llm.stream_chat([ChatMessage(ASK)])
tried("stream_chat", "21" in "".join(one.delta or "" for one in deltas))
tried("structured", llm.as_structured_llm(Weather).complete(ASK).raw.degrees == 21)
tools = [FunctionTool.from_defaults(get_weather)]
for required in (False, True):
    answer = llm.chat_with_tools(tools, user_msg=ASK, tool_required=required)
    calls = llm.get_tool_calls_from_response(answer)
    what = "tools, required" if required else "tools"
    tried(what, calls[0].tool_kwargs["town"] == "Oldford")
tried("predict_and_call", "21" in str(llm.predict_and_call(tools, user_msg=ASK)))
tried_too_long(llm.complete)
