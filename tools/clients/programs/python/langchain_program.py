"""LangChain over OpenAI's and Anthropic's dialects."""

from asked import ASK, MODEL, URL, Weather, get_weather, tried, tried_too_long
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

openai = {"base_url": f"{URL}/v1", "api_key": "none", "model": MODEL, "max_retries": 0}
anthropic = {**openai, "base_url": URL}
chats = {
    "chat": ChatOpenAI(**openai),
    "responses": ChatOpenAI(**openai, use_responses_api=True),
    "previous_response_id": ChatOpenAI(
        **openai, use_responses_api=True, use_previous_response_id=True
    ),
    "messages": ChatAnthropic(**anthropic),
}
for where, chat in chats.items():
    tried(f"{where} invoke", "21" in chat.invoke(ASK).text)
    tried(f"{where} stream", "21" in "".join(one.text for one in chat.stream(ASK)))
    for method in ("json_schema", "function_calling"):
        asked = chat.with_structured_output(Weather, method=method)
        tried(f"{where} {method}", asked.invoke(ASK).degrees == 21)
    for choice in ("auto", "any"):
        bound = chat.bind_tools([tool(get_weather)], tool_choice=choice)
        first = bound.invoke(ASK)
        tried(f"{where} tool_choice {choice}", first.tool_calls[0]["args"]["town"] == "Oldford")
    result = ToolMessage("21 degrees", tool_call_id=first.tool_calls[0]["id"])
    last = chat.bind_tools([tool(get_weather)]).invoke([HumanMessage(ASK), first, result])
    tried(f"{where} tool result", "21" in last.text)
    tried_too_long(chat.invoke, what=f"{where} too long")
