"""Names of what reads a model's answers, as operators give them: vLLM's."""

AUTO = "auto"
"""Found from the model's chat template."""

NONE = "none"
"""Calls, or reasoning, stay text."""

HARMONY_CALLS, HARMONY_REASONING = "openai", "openai_gptoss"
"""gpt-oss writes both in one format."""

TOOL_PARSERS = (
    AUTO,
    NONE,
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "deepseek_v4",
    "gemma4",
    "glm45",
    "granite",
    "hermes",
    "jamba",
    "kimi_k2",
    "lfm2",
    "llama3_json",
    "minimax_m2",
    "mistral",
    "nemotron_json",
    HARMONY_CALLS,
    "phi4_mini_json",
    "qwen3_coder",
    "seed_oss",
)
REASONING_PARSERS = (
    AUTO,
    NONE,
    "qwen3",
    "deepseek_r1",
    "mistral",
    HARMONY_REASONING,
    "seed_oss",
)
