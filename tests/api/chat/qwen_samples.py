"""Answers as Qwen and Hermes write them, and what is in them.

The texts follow the formats that families publish with their chat templates; special tokens
stand in them as the tokenizers show them.
"""

from dataclasses import dataclass

WEATHER, TIME = "get_weather", "get_time"
PARIS = '{"city": "Paris"}'
NESTED = '{"city": "K\\u00f6ln \\"am\\" Rhein {[", "days": [1, 2, {"a": null}], "metric": true}'


@dataclass(frozen=True)
class Sample:
    """One answer, and its parts put together."""

    tools: str
    reasoning: str
    text: str
    says: str = ""
    thinks: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    prompt: str = ""


QWEN_SAMPLES = {
    "hermes": Sample(
        "hermes",
        "none",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        calls=((WEATHER, PARIS),),
    ),
    "hermes-text-before": Sample(
        "hermes",
        "none",
        'I shall look.\n<tool_call>\n{"name": "get_weather", "arguments": '
        + NESTED
        + "}\n</tool_call>",
        says="I shall look.",
        calls=((WEATHER, NESTED),),
    ),
    "hermes-two": Sample(
        "hermes",
        "none",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
        calls=((WEATHER, PARIS), (TIME, "{}")),
    ),
    "hermes-arguments-first": Sample(
        "hermes",
        "none",
        '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>',
        calls=((WEATHER, PARIS),),
    ),
    "hermes-no-closing-mark": Sample(
        "hermes",
        "none",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n',
        calls=((WEATHER, PARIS),),
    ),
    "hermes-mark-within-arguments": Sample(
        "hermes",
        "none",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "</tool_call>"}}</tool_call>',
        calls=((WEATHER, '{"city": "</tool_call>"}'),),
    ),
    "qwen-coder-fence": Sample(
        "hermes",
        "none",
        'I look.\n```json\n{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Paris"\n'
        "  }\n}\n```\n\nWait.",
        says="I look.Wait.",
        calls=((WEATHER, '{\n    "city": "Paris"\n  }'),),
    ),
    "qwen-coder-bare": Sample(
        "hermes",
        "none",
        '{"name": "get_weather", "arguments": {"city": "Paris"}}\n'
        '{"name": "get_time", "arguments": {}}\n',
        calls=((WEATHER, PARIS), (TIME, "{}")),
    ),
    "qwen-coder-bare-beside-prose": Sample(
        "hermes",
        "none",
        '{"name": "get_time", "arguments": {}}\nThat is how a call looks.',
        says='{"name": "get_time", "arguments": {}}\nThat is how a call looks.',
    ),
    "qwen-coder-bare-and-another-object": Sample(
        "hermes",
        "none",
        '{"name": "get_time", "arguments": {}}\n{"name": "Bob", "arguments": {}}',
        says='{"name": "get_time", "arguments": {}}\n{"name": "Bob", "arguments": {}}',
    ),
    "qwen-coder-bare-unknown": Sample(
        "hermes",
        "none",
        '{"name": "Bob", "arguments": {"age": 5}}',
        says='{"name": "Bob", "arguments": {"age": 5}}',
    ),
    "qwen-coder-bare-before-a-marked-one": Sample(
        "hermes",
        "none",
        '{"name": "get_time"} <tool_call>{"name": "get_time", "arguments": {}}</tool_call>',
        says='{"name": "get_time"}',
        calls=((TIME, "{}"),),
    ),
    "qwen-coder-two-in-a-fence": Sample(
        "hermes",
        "none",
        '```\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n'
        '{"name": "get_time", "arguments": {}}\n```',
        calls=((WEATHER, PARIS), (TIME, "{}")),
    ),
    "qwen-coder-no-tool": Sample(
        "hermes",
        "none",
        '```json\n{"name": "Bob", "arguments": {}}\n```\n```python\n{"name": "get_time"}\n```',
        says='```json\n{"name": "Bob", "arguments": {}}\n```\n```python\n{"name": "get_time"}\n```',
    ),
    "qwen-coder-json": Sample("hermes", "none", '{"answer": 1}', says='{"answer": 1}'),
    "qwen-coder-within-text": Sample(
        "hermes",
        "none",
        'Write {"name": "get_time", "arguments": {}} ``',
        says='Write {"name": "get_time", "arguments": {}} ``',
    ),
    "qwen3-thinks": Sample(
        "hermes",
        "qwen3",
        "<think>\nThe user wants the weather.\nI call <tool_call>?\n</think>\n\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        thinks="The user wants the weather.\nI call <tool_call>?",
        calls=((WEATHER, PARIS),),
    ),
    "qwen3-empty-thoughts": Sample(
        "hermes", "qwen3", "<think>\n\n</think>\n\nHello.", says="Hello."
    ),
    "qwen3-thinking-prompt": Sample(
        "hermes",
        "qwen3",
        "Let me see.\n</think>\n\nHello.",
        says="Hello.",
        thinks="Let me see.",
        prompt="<|im_start|>assistant\n<think>\n",
    ),
    "qwen3-thoughts-forbidden": Sample(
        "hermes",
        "qwen3",
        "Hello.",
        says="Hello.",
        prompt="<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ),
    "deepseek-tag-left-out": Sample(
        "none", "deepseek_r1", "Hm.\n</think>\n\nHello.", says="Hello.", thinks="Hm."
    ),
    "deepseek-cut-off": Sample("none", "deepseek_r1", "<think>\nHm, wha", thinks="Hm, wha"),
    "coder": Sample(
        "qwen3_coder",
        "none",
        "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        '<parameter=days>\n3\n</parameter>\n<parameter=code>\nif a < b:\n  "x"\n</parameter>\n'
        "</function>\n</tool_call>",
        says="I look.",
        calls=((WEATHER, '{"city": "Paris", "days": 3, "code": "if a < b:\\n  \\"x\\""}'),),
    ),
    "coder-two": Sample(
        "qwen3_coder",
        "qwen3",
        "<think>\nHm.\n</think>\n\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n"
        "</tool_call>",
        thinks="Hm.",
        calls=((TIME, "{}"), (WEATHER, PARIS)),
    ),
    "coder-text": Sample(
        "qwen3_coder", "none", "<tool_call>no</tool_call>", "<tool_call>no</tool_call>"
    ),
    "coder-cut-off": Sample(
        "qwen3_coder", "none", "See <tool_call>\n<function=get_", "See <tool_call>\n<function=get_"
    ),
}
