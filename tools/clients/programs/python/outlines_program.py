"""Outlines: text, streams and answers of a type."""

import openai
import outlines
from asked import ASK, MODEL, URL, Weather, tried, tried_too_long

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
for where, model in {
    "from_openai": outlines.from_openai(client, MODEL),
    "from_vllm": outlines.from_vllm(client, MODEL),
}.items():
    tried(f"{where} text", "21" in model(ASK))
    tried(f"{where} stream", "21" in "".join(model.stream(ASK)))
    tried(f"{where} type", Weather.model_validate_json(model(ASK, Weather)).degrees == 21)
    tried_too_long(model, what=f"{where} too long")
