"""Answers as models of all families write them, and what is in them."""

from tests.api.chat.qwen_samples import NESTED, PARIS, QWEN_SAMPLES, TIME, WEATHER, Sample

__all__ = ["SAMPLES", "TIME", "WEATHER", "Sample"]

SAMPLES = QWEN_SAMPLES | {
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
    "deepseek-v3.2": Sample(
        "deepseek_v32",
        "qwen3",
        "Hm.</think>\n\n<｜DSML｜function_calls>\n"
        '<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="get_time">\n</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>",
        thinks="Hm.",
        calls=((WEATHER, '{"city": "Paris", "days": 3}'), (TIME, "{}")),
        prompt="<｜Assistant｜><think>",
    ),
    "deepseek-v4-broken": Sample(
        "deepseek_v4",
        "none",
        "<｜DSML｜tool_calls>\n<｜DSML｜in",
        "<｜DSML｜tool_calls>\n<｜DSML｜in",
    ),
    # -- notations of their own --------------------------------------------------------------------
    "gemma": Sample(
        "gemma4",
        "none",
        'I look.<|tool_call>call:get_weather{city:<|"|>P "a, b:"<|"|>,more:{x:[1,null]}}'
        "<tool_call|><|tool_call>call:get_time{}<tool_call|>",
        says="I look.",
        calls=(
            (WEATHER, '{"city": "P \\"a, b:\\"", "more": {"x": [1, null]}}'),
            (TIME, "{}"),
        ),
    ),
    "gemma-in-json": Sample(
        "gemma4",
        "none",
        "<|tool_call>call:get_weather" + PARIS + "<tool_call|>",
        calls=((WEATHER, PARIS),),
    ),
    "gemma-broken": Sample(
        "gemma4",
        "none",
        "<|tool_call>call:get_weather{city:<tool_call|> x",
        "<|tool_call>call:get_weather{city:<tool_call|> x",
    ),
    "lfm": Sample(
        "lfm2",
        "none",
        "<|tool_call_start|>[get_weather(city='Paris', more={\"a\": true}), get_time()]"
        "<|tool_call_end|>I look.",
        says="I look.",
        calls=((WEATHER, '{"city": "Paris", "more": {"a": true}}'), (TIME, "{}")),
    ),
    "lfm-in-json": Sample(
        "lfm2",
        "none",
        '<|tool_call_start|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]'
        "<|tool_call_end|>",
        calls=((WEATHER, PARIS),),
    ),
    "lfm-broken": Sample(
        "lfm2",
        "none",
        "<|tool_call_start|>[get_weather(city=open('x'))]<|tool_call_end|>",
        "<|tool_call_start|>[get_weather(city=open('x'))]<|tool_call_end|>",
    ),
    "lfm-cut-off": Sample("lfm2", "none", "A <|tool_call_start|>[f", "A <|tool_call_start|>[f"),
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
