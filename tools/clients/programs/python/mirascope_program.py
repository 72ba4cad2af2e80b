"""Mirascope: calls, streams, tools and formats, over three dialects."""

from asked import ASK, MODEL, URL, Weather, get_weather, tried, tried_too_long
from mirascope import llm

for provider, base in (("openai", f"{URL}/v1"), ("anthropic", URL)):
    llm.register_provider(provider, base_url=base, api_key="none")
for name in (f"openai/{MODEL}:completions", f"openai/{MODEL}:responses", f"anthropic/{MODEL}"):
    where = name.replace(MODEL, "").strip("/").replace("/:", " ")
    model = llm.model(name)
    tried(f"{where} call", "21" in model.call(ASK).text())
    tried(f"{where} stream", "21" in "".join(model.stream(ASK).text_stream()))
    first = model.call(ASK, tools=[llm.tool(get_weather)])
    last = first.resume(first.execute_tools())
    tried(f"{where} tool and result", "21" in last.text())
    for mode in ("tool", "json"):
        answer = model.call(ASK, format=llm.format(Weather, mode=mode)).parse()
        tried(f"{where} format {mode}", answer.degrees == 21)
    tried_too_long(model.call, what=f"{where} too long")
