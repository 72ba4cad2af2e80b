"""Calls of tools over a real ring: the demo model, which was never taught any, is made to call."""

import json
import shutil

import openai
import pytest

from molink.models import DEMO_MODEL_DIR
from tests.end_to_end.conftest import serving

TEMPLATE = (
    "{{ bos_token }}{% if tools %}<|system|>{{ tools | tojson }}"
    "To call one: <tool_call>\n...\n</tool_call><|end|>{% endif %}"
    "{% for m in messages %}{{ '<|assistant|>' if m.role == 'assistant' else '<|user|>' }}"
    "{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>"
    "{% endfor %}<|end|>{% endfor %}<|assistant|>"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "unit": {"enum": ["C", "F"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
ASK = [{"role": "user", "content": "Is it warm in Rome?"}]
ONE_CALL = {
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tokens": 100,
    "temperature": 0,
}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    model = tmp_path_factory.mktemp("model") / "demo-with-tools"
    shutil.copytree(DEMO_MODEL_DIR, model)
    settings = model / "tokenizer_config.json"
    known = json.loads(settings.read_text())
    settings.write_text(json.dumps(known | {"chat_template": TEMPLATE}))
    with serving(str(model), "--nodes", "2") as server:
        yield server.url


def test_a_forced_call_its_result_and_the_stream_of_the_same(url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    ask = client.chat.completions.create
    (choice,) = ask(model="demo-with-tools", messages=ASK, **ONE_CALL).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "get_weather" and arguments.keys() == {"city", "unit"}
    assert arguments["unit"] in ("C", "F")

    deltas = [
        delta
        for chunk in ask(model="demo-with-tools", messages=ASK, stream=True, **ONE_CALL)
        for delta in chunk.choices[0].delta.tool_calls or ()
    ]
    assert len(deltas) > 3 and deltas[0].function.name == "get_weather"
    streamed = "".join(delta.function.arguments for delta in deltas)
    assert json.loads(streamed) == arguments

    result = {"role": "tool", "tool_call_id": call.id, "content": "warm"}
    history = [*ASK, choice.message, result]
    said = ask(model="demo-with-tools", messages=history, tools=[TOOL], max_tokens=8)
    assert said.choices[0].message.content
