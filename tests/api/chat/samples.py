"""Answers as models of each family write them, and what is in them.

The texts follow the formats that the families publish with their chat templates; special tokens
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


SAMPLES = {
    # -- Qwen and Hermes ---------------------------------------------------------------------------
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
    # -- other tags --------------------------------------------------------------------------------
    "seed": Sample(
        "seed_oss",
        "seed_oss",
        "<seed:think>Hm.</seed:think>\n<seed:tool_call>\n<function=get_weather>\n"
        "<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>",
        thinks="Hm.",
        calls=((WEATHER, PARIS),),
    ),
    "glm": Sample(
        "glm45",
        "qwen3",
        "\n<think>Hm.</think>\nI look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
        "<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
        "</tool_call>\n<tool_call>get_time\n</tool_call>",
        says="I look.",
        thinks="Hm.",
        calls=((WEATHER, '{"city": "Paris", "days": 3}'), (TIME, "{}")),
    ),
    "glm-4.7-in-one-line": Sample(
        "glm45",
        "none",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value> a <b>\n</arg_value></tool_call>",
        calls=((WEATHER, '{"city": " a <b>\\n"}'),),
    ),
    "glm-text": Sample("glm45", "none", "<tool_call>no</tool_call>", "<tool_call>no</tool_call>"),
    "glm-cut-off": Sample("glm45", "none", "See <tool_call>get_wea", "See <tool_call>get_wea"),
    "minimax": Sample(
        "minimax_m2",
        "qwen3",
        "Hm.\n</think>\n\n<minimax:tool_call>\n"
        '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="get_time">\n</invoke>\n'
        "</minimax:tool_call>",
        thinks="Hm.",
        calls=((WEATHER, '{"city": "Paris", "days": 3}'), (TIME, "{}")),
        prompt="]~b]ai\n<think>\n",
    ),
    "minimax-broken": Sample(
        "minimax_m2",
        "none",
        '<minimax:tool_call><invoke name="',
        '<minimax:tool_call><invoke name="',
    ),
    # -- names before JSON -------------------------------------------------------------------------
    "deepseek-v3": Sample(
        "deepseek_v3",
        "none",
        "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        "```json\n"
        + NESTED
        + "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n"
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        says="I look.",
        calls=((WEATHER, NESTED), (TIME, "{}")),
    ),
    "deepseek-v3.1": Sample(
        "deepseek_v31",
        "qwen3",
        "Hm.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        thinks="Hm.",
        calls=((WEATHER, PARIS), (TIME, "{}")),
        prompt="<｜Assistant｜><think>",
    ),
    "deepseek-cut-off-behind-a-call": Sample(
        "deepseek_v31",
        "none",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁",
        calls=((TIME, "{}"),),
    ),
    "deepseek-text": Sample(
        "deepseek_v3", "none", "A <｜tool▁calls▁begin｜> B", "A <｜tool▁calls▁begin｜> B"
    ),
    "deepseek-no-arguments": Sample(
        "deepseek_v31",
        "none",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>",
    ),
    "kimi": Sample(
        "kimi_k2",
        "none",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>'
        "functions.get_time:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        calls=((WEATHER, PARIS), (TIME, "{}")),
    ),
    # -- arrays ------------------------------------------------------------------------------------
    "granite": Sample(
        "granite",
        "none",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        calls=((WEATHER, PARIS),),
    ),
    "jamba": Sample(
        "jamba",
        "none",
        'I look.\n<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}}]'
        "</tool_calls>",
        says="I look.",
        calls=((WEATHER, PARIS),),
    ),
    "nemotron": Sample(
        "nemotron_json",
        "qwen3",
        "<think>\n\n</think>\n\n<TOOLCALL>[\n"
        '{"name": "get_weather", "arguments": {"city": "Paris"}}\n] </TOOLCALL>',
        calls=((WEATHER, PARIS),),
    ),
    "phi": Sample(
        "phi4_mini_json",
        "none",
        'functools[{"name": "get_weather", "arguments": {"city": "Paris"}}, '
        '{"name": "get_time", "arguments": {}}]',
        calls=((WEATHER, PARIS), (TIME, "{}")),
    ),
    "phi-text": Sample(
        "phi4_mini_json", "none", "Use functools.cache here.", "Use functools.cache here."
    ),
    # -- Llama 3 -----------------------------------------------------------------------------------
    "llama": Sample(
        "llama3_json",
        "none",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        calls=((WEATHER, PARIS),),
    ),
    "llama-tag": Sample(
        "llama3_json",
        "none",
        '<|python_tag|>{"name": "get_weather", "parameters": ' + NESTED + "}",
        calls=((WEATHER, NESTED),),
    ),
    "llama-type-first": Sample(
        "llama3_json",
        "none",
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}',
        calls=((WEATHER, PARIS),),
    ),
    "llama-two": Sample(
        "llama3_json",
        "none",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}; '
        '{"name": "get_time", "parameters": {}}',
        calls=((WEATHER, PARIS), (TIME, "{}")),
    ),
    "llama-json-for-its-own-sake": Sample(
        "llama3_json",
        "none",
        '{"name": "Ann", "parameters": {}}',
        '{"name": "Ann", "parameters": {}}',
    ),
    "llama-json-answer": Sample("llama3_json", "none", '{"city": [1, 2]}', '{"city": [1, 2]}'),
    "llama-text": Sample("llama3_json", "none", "  Braces {} help. ", "  Braces {} help. "),
    # -- Mistral -----------------------------------------------------------------------------------
    "mistral-array": Sample(
        "mistral",
        "none",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}, '
        '{"name": "get_time", "arguments": {}, "id": "abcdefghi"}]',
        calls=((WEATHER, PARIS), (TIME, "{}")),
    ),
    "mistral-named": Sample(
        "mistral",
        "none",
        'I look.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time[ARGS]{}',
        says="I look.",
        calls=((WEATHER, PARIS), (TIME, "{}")),
    ),
    "mistral-call-id": Sample(
        "mistral",
        "none",
        '[TOOL_CALLS]get_weather[CALL_ID]123456789[ARGS]{"city": "Paris"}',
        calls=((WEATHER, PARIS),),
    ),
    "mistral-bare-name": Sample(
        "mistral", "none", '[TOOL_CALLS]get_weather{"city": "Paris"}', calls=((WEATHER, PARIS),)
    ),
    "magistral-thinks": Sample(
        "mistral",
        "mistral",
        '[THINK]Look it up.[/THINK][TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
        thinks="Look it up.",
        calls=((WEATHER, PARIS),),
    ),
    # -- gpt-oss -----------------------------------------------------------------------------------
    "harmony-answer": Sample(
        "openai",
        "openai_gptoss",
        '<|channel|>analysis<|message|>User asks: "What is 2 + 2?" Simple arithmetic.<|end|>'
        "<|start|>assistant<|channel|>final<|message|>2 + 2 = 4.",
        says="2 + 2 = 4.",
        thinks='User asks: "What is 2 + 2?" Simple arithmetic.',
    ),
    "harmony-call": Sample(
        "openai",
        "openai_gptoss",
        "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant<|channel|>"
        "commentary to=functions.get_weather <|constrain|>json<|message|>" + NESTED,
        thinks="Need the weather.",
        calls=((WEATHER, NESTED),),
    ),
    "harmony-recipient-in-role": Sample(
        "openai",
        "openai_gptoss",
        ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Paris"}<|call|>',
        calls=((WEATHER, PARIS),),
    ),
    "harmony-preamble": Sample(
        "openai",
        "openai_gptoss",
        "<|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant<|channel|>"
        "commentary to=functions.get_time<|message|><|call|>",
        says="I look it up.",
        calls=((TIME, "{}"),),
    ),
    # -- what is no call ---------------------------------------------------------------------------
    "broken-no-json": Sample(
        "hermes", "none", "<tool_call>call me</tool_call>", "<tool_call>call me</tool_call>"
    ),
    "broken-no-name": Sample(
        "hermes",
        "none",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
    ),
    "broken-then-good": Sample(
        "hermes",
        "none",
        '<tool_call>{"name": 5}</tool_call> <tool_call>{"name": "get_time", "arguments": {}}'
        "</tool_call>",
        '<tool_call>{"name": 5}</tool_call>',
        calls=((TIME, "{}"),),
    ),
    "broken-cut-off": Sample("hermes", "none", 'Look: <tool_call>{"na', 'Look: <tool_call>{"na'),
    "broken-python": Sample(
        "llama3_json", "none", "<|python_tag|>print(1)", "<|python_tag|>print(1)"
    ),
    "broken-mistral": Sample("mistral", "none", "[TOOL_CALLS] and so on", "[TOOL_CALLS] and so on"),
    "broken-mistral-array": Sample(
        "mistral", "none", '[TOOL_CALLS][{"name": 1}]', '[TOOL_CALLS][{"name": 1}]'
    ),
    "harmony-without-channels": Sample("openai", "openai_gptoss", "Hello.", "Hello."),
}
