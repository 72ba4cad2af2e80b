"""Instructor's ways to structured output."""

import sys

import instructor
import openai
from pydantic import BaseModel


class Weather(BaseModel):
    """Weather of a town."""

    town: str
    degrees: int


url, model = sys.argv[1:3]
ask = [{"role": "user", "content": "How warm is it in Oldford?"}]
for mode in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "JSON", "RESPONSES_TOOLS"):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    patched = instructor.from_openai(client, mode=instructor.Mode[mode])
    answer = patched.chat.completions.create(
        model=model, messages=ask, response_model=Weather, max_retries=0
    )
    assert answer.degrees == 21
    print("ok", mode, flush=True)
