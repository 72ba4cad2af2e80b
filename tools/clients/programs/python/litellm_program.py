"""LiteLLM's library, with four of its providers."""

import litellm
from asked import ASK, MODEL, URL, tried, tried_too_long

ask = [{"role": "user", "content": ASK}]
litellm.num_retries = 0
for provider, base in (
    *(("openai", f"{URL}/v1"), ("hosted_vllm", f"{URL}/v1")),
    *(("lm_studio", f"{URL}/v1"), ("anthropic", URL)),
):
    asked = {"model": f"{provider}/{MODEL}", "api_base": base, "api_key": "none", "messages": ask}
    whole = litellm.completion(**asked).choices[0].message.content
    chunks = litellm.completion(**asked, stream=True)
    streamed = "".join(one.choices[0].delta.content or "" for one in chunks)
    tried(provider, "21" in whole and "21" in streamed)
    tried_too_long(
        lambda text, asked=asked: litellm.completion(
            **{**asked, "messages": [{"role": "user", "content": text}]}
        ),
        litellm.ContextWindowExceededError,
        f"{provider} too long",
    )
