"""Round trips: a template writes an earlier call into a prompt, and the reader that is found for
this template reads the same call back from there.

The templates are short ones of our own that write calls as the published ones of each family do.
"""

import json

import pytest
from transformers import AutoTokenizer

from molink.api.chat import ChatFormat, Conversation, Message, Tool, ToolCall
from molink.api.chat.prompt import PartReader, _rendered
from molink.models import DEMO_MODEL_DIR

ARGUMENTS = {"city": 'Köln "am" <b>\n', "days": 3, "more": {"a": [1, None, "</x>"]}}
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "more": {"type": "object"},
    },
}
TOOLS = (Tool("get_weather", parameters=PARAMETERS), Tool("get_time"))
CALLS = (
    ToolCall("abcdefghi", "get_weather", json.dumps(ARGUMENTS, ensure_ascii=False)),
    ToolCall("123456789", "get_time", "{}"),
)
KIMI_CALLS = tuple(
    ToolCall(f"functions.{call.name}:{place}", call.name, call.arguments)
    for place, call in enumerate(CALLS)
)
USER = Message("user", "weather?")

BEGIN = "{% if tools %}{{ tools | tojson }}{% endif %}"
EACH = "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
END = "{% endfor %}[assistant]"
CALL = "{% for c in m.tool_calls or [] %}{% set f = c.function %}"
DONE = "{% endfor %}"
VALUE = "{{ v if v is string else v | tojson }}"
ITEMS = "{% for k, v in f.arguments.items() %}"


def family(*, begin: str = "", call: str, end: str = "") -> str:
    """A template whose calls stand between `begin` and `end`."""
    calls = f"{{% if m.tool_calls %}}{begin}{CALL}{call}{DONE}{end}{{% endif %}}"
    return BEGIN + EACH + calls + END


JSON = '{{ \'{"name": "\' + f.name + \'", "arguments": \' }}{{ f.arguments | tojson }}}'
COMMA = "{{ ', ' if not loop.last }}"

DSML = (
    '<｜DSML｜invoke name="{{ f.name }}">\n'
    + ITEMS
    + '<｜DSML｜parameter name="{{ k }}" string="{{ "true" if v is string else "false" }}">'
    + VALUE
    + "</｜DSML｜parameter>\n"
    + DONE
    + "</｜DSML｜invoke>\n"
)
DSML_END = "</｜DSML｜function_calls>"

TEMPLATES = {
    "hermes": family(call=f"<tool_call>\n{JSON}\n</tool_call>\n"),
    "mistral": family(begin="[TOOL_CALLS][", call=JSON + COMMA, end="]"),
    "mistral, by name": family(call="[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"),
    "granite": family(begin="<|tool_call|>[", call=JSON + COMMA, end="]"),
    "jamba": family(begin="<tool_calls>[", call=JSON + COMMA, end="]</tool_calls>"),
    "nemotron_json": family(begin="<TOOLCALL>[", call=JSON + COMMA, end="]</TOOLCALL>"),
    "phi4_mini_json": family(begin="functools[", call=JSON + COMMA, end="]"),
    "qwen3_coder": family(
        call="<tool_call>\n<function={{ f.name }}>\n"
        + ITEMS
        + "<parameter={{ k }}>\n"
        + VALUE
        + "\n</parameter>\n"
        + DONE
        + "</function>\n</tool_call>\n"
    ),
    "seed_oss": family(
        call="<seed:tool_call>\n<function={{ f.name }}>\n"
        + ITEMS
        + "<parameter={{ k }}>"
        + VALUE
        + "</parameter>\n"
        + DONE
        + "</function>\n</seed:tool_call>\n"
    ),
    "glm45": family(
        call="\n<tool_call>{{ f.name }}\n"
        + ITEMS
        + "<arg_key>{{ k }}</arg_key>\n<arg_value>"
        + VALUE
        + "</arg_value>\n"
        + DONE
        + "</tool_call>"
    ),
    "glm45, without breaks": family(
        call="<tool_call>{{ f.name }}"
        + ITEMS
        + "<arg_key>{{ k }}</arg_key><arg_value>"
        + VALUE
        + "</arg_value>"
        + DONE
        + "</tool_call>"
    ),
    "minimax_m2": family(
        begin="<minimax:tool_call>\n",
        call='<invoke name="{{ f.name }}">\n'
        + ITEMS
        + '<parameter name="{{ k }}">'
        + VALUE
        + "</parameter>\n"
        + DONE
        + "</invoke>\n",
        end="</minimax:tool_call>",
    ),
    "deepseek_v32": family(begin="\n\n<｜DSML｜function_calls>\n", call=DSML, end=DSML_END),
    "deepseek_v4": family(
        begin="\n\n<｜DSML｜tool_calls>\n",
        call=DSML,
        end=DSML_END.replace("function", "tool"),
    ),
    "gemma4": family(
        call="<|tool_call>call:{{ f.name + '{' }}"
        + ITEMS
        + "{{ ',' if not loop.first }}{{ k }}:"
        + "{{ '<|\"|>' + v + '<|\"|>' if v is string else v | tojson }}"
        + DONE
        + "}<tool_call|>"
    ),
    "lfm2": family(
        begin="<|tool_call_start|>[",
        call="{{ f.name }}("
        + ITEMS
        + "{{ ', ' if not loop.first }}{{ k }}="
        + "{{ v | tojson | replace('null', 'None') }}"
        + DONE
        + ")"
        + COMMA,
        end="]<|tool_call_end|>",
    ),
    "deepseek_v3": family(
        begin="<｜tool▁calls▁begin｜>",
        call="<｜tool▁call▁begin｜>{{ c.type }}<｜tool▁sep｜>{{ f.name }}\n```json\n"
        "{{ f.arguments | tojson }}\n```<｜tool▁call▁end｜>{{ '\n' if not loop.last }}",
        end="<｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": family(
        begin="<｜tool▁calls▁begin｜>",
        call="{{ '<｜tool▁call▁begin｜>' + f.name + '<｜tool▁sep｜>' + f.arguments }}"
        "<｜tool▁call▁end｜>",
        end="<｜tool▁calls▁end｜>",
    ),
    "kimi_k2": family(
        begin="<|tool_calls_section_begin|>",
        call="<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>"
        "{{ f.arguments | tojson }}<|tool_call_end|>",
        end="<|tool_calls_section_end|>",
    ),
}

CANNOT = {
    "Apertus": family(call='<|tools_prefix|>[{"{{ f.name }}": {}}]<|tools_suffix|>'),
    "MiniMax-M3": family(call=']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="{{ f.name }}">'),
}


def tokenizer(template: str):
    found = AutoTokenizer.from_pretrained(DEMO_MODEL_DIR)
    found.chat_template = template
    return found


def answer_in_history(template: str, calls: tuple[ToolCall, ...]) -> str:
    """What the template writes for an assistant's turn with these calls."""
    known, form = tokenizer(template), ChatFormat.of(tokenizer(template))
    said = Message("assistant", "I look.", tool_calls=calls)
    before = _rendered(known, Conversation((USER,), TOOLS), form)
    after = _rendered(known, Conversation((USER, said), TOOLS), form)
    assert after.startswith(before)
    return after.removeprefix(before).removesuffix("[assistant]")


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_call_in_the_history_is_read_as_the_same_call(name):
    calls = KIMI_CALLS if name == "kimi_k2" else CALLS
    text, asked = answer_in_history(TEMPLATES[name], calls), Conversation((USER,), TOOLS)
    form = ChatFormat.of(tokenizer(TEMPLATES[name]))
    assert form.tool_parser == name.split(",")[0] and form.takes_tools
    reply = PartReader(form.reader(asked, ""), asked).whole(text, "stop")
    assert (reply.text, reply.finish_reason) == ("I look.", "tool_calls")
    found = [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]
    assert found == [("get_weather", ARGUMENTS), ("get_time", {})]


def test_calls_of_kimi_keep_the_models_own_ids():
    text, asked = answer_in_history(TEMPLATES["kimi_k2"], KIMI_CALLS), Conversation((USER,), TOOLS)
    form = ChatFormat("kimi_k2")
    reply = PartReader(form.reader(asked, ""), asked).whole(text, "stop")
    assert [call.id for call in reply.tool_calls] == [call.id for call in KIMI_CALLS]
    twice = PartReader(form.reader(asked, ""), asked).whole(text * 2, "stop")
    assert len({call.id for call in twice.tool_calls}) == 4


@pytest.mark.parametrize("name", CANNOT)
def test_a_format_that_nothing_reads_is_told(name):
    assert ChatFormat.of(tokenizer(CANNOT[name])).tool_parser == "none"
