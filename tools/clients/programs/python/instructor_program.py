"""Instructor's ways to structured output."""

from collections.abc import Iterable

import instructor
import openai
from asked import ASK, MODEL, URL, Weather, tried, tried_too_long

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


def asked(mode, text=ASK, kind=Weather):
    patched = instructor.from_openai(client, mode=instructor.Mode[mode])
    messages = [{"role": "user", "content": text}]
    return patched.chat.completions.create(
        model=MODEL, messages=messages, response_model=kind, max_retries=0
    )


for mode in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "JSON", "RESPONSES_TOOLS"):
    tried(mode, asked(mode).degrees == 21)
calls = list(asked("PARALLEL_TOOLS", kind=Iterable[Weather]))
tried("PARALLEL_TOOLS", calls[0].degrees == 21)
tried_too_long(lambda text: asked("TOOLS", text))
