"""Calls of tools over a real stage: the demo model, which was never taught any, is made to call."""

import json
import shutil

import openai
import pytest

from molink.models import DEMO_MODEL_DIR
from tests.end_to_end.conftest import serving
from tests.sweeps import swept

BEGIN = "{{ bos_token }}{% if tools %}<|user|>{{ tools | tojson }}<|end|>{% endif %}"
EACH = (
    "{% for m in messages %}{{ '<|assistant|>' if m.role == 'assistant' else '<|user|>' }}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}{% set f = c.function %}"
)
END = "{% endfor %}<|end|>{% endfor %}<|assistant|>"
TEMPLATES = {
    "hermes": f"{BEGIN}{EACH}<tool_call>\n{{{{ f | tojson }}}}\n</tool_call>{END}",
    "qwen3_coder": f"{BEGIN}{EACH}<tool_call>\n<function={{{{ f.name }}}}>\n"
    "{% for k, v in f.arguments.items() %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n"
    f"{{% endfor %}}</function>\n</tool_call>{END}",
    "mistral": f"{BEGIN}{EACH}[TOOL_CALLS]{{{{ f.name }}}}[ARGS]{{{{ f.arguments | tojson }}}}"
    + END,
}
SPECIAL = {"mistral": {"<|pad|>": "[TOOL_CALLS]", "<|system|>": "[ARGS]"}}
"""Special tokens of the demo model that take the names of a format's marks."""

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
NOTHING = {"type": "object", "additionalProperties": False}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": NOTHING}}
ASK = [{"role": "user", "content": "Is it warm in Rome?"}]
ONE_CALL = {
    "tools": [TOOL, TIME],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tokens": 100,
    "temperature": 0,
}


@pytest.fixture(scope="module", params=swept(TEMPLATES, "mistral"))
def url(request, tmp_path_factory):
    model = tmp_path_factory.mktemp("model") / "demo-with-tools"
    shutil.copytree(DEMO_MODEL_DIR, model)
    settings = model / "tokenizer_config.json"
    known = json.loads(settings.read_text()) | {"chat_template": TEMPLATES[request.param]}
    settings.write_text(_renamed(json.dumps(known), request.param))
    tokens = model / "tokenizer.json"
    tokens.write_text(_renamed(tokens.read_text(), request.param))
    with serving(str(model), "--nodes", "1") as server:
        yield server.url


def _renamed(text: str, family: str) -> str:
    for old, new in SPECIAL.get(family, {}).items():
        text = text.replace(old, new)
    return text


def test_a_forced_call_its_result_and_the_stream_of_the_same(url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    ask = client.chat.completions.create
    (choice,) = ask(model="demo-with-tools", messages=ASK, **ONE_CALL).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    assert call.function.name in ("get_weather", "get_time")

    named = {"type": "function", "function": {"name": "get_weather"}}
    ask_by_name = ONE_CALL | {"tool_choice": named}
    (choice,) = ask(model="demo-with-tools", messages=ASK, **ask_by_name).choices
    (call,) = choice.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "get_weather" and arguments.keys() == {"city", "unit"}
    assert arguments["unit"] in ("C", "F")

    deltas = [
        delta
        for chunk in ask(model="demo-with-tools", messages=ASK, stream=True, **ask_by_name)
        for delta in chunk.choices[0].delta.tool_calls or ()
    ]
    assert len(deltas) > 3 and deltas[0].function.name == "get_weather"
    streamed = "".join(delta.function.arguments for delta in deltas)
    assert json.loads(streamed) == arguments

    result = {"role": "tool", "tool_call_id": call.id, "content": "warm"}
    history = [*ASK, choice.message, result]
    said = ask(model="demo-with-tools", messages=history, tools=[TOOL], max_tokens=8)
    assert said.choices[0].message.content
