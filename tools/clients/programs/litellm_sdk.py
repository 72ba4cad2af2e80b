"""LiteLLM's library, with four of its providers."""

import sys

import litellm

url, model = sys.argv[1:3]
ask = [{"role": "user", "content": "How warm is it in Oldford?"}]
litellm.num_retries = 0
for provider, base in (
    *(("openai", f"{url}/v1"), ("hosted_vllm", f"{url}/v1")),
    *(("lm_studio", f"{url}/v1"), ("anthropic", url)),
):
    asked = {"model": f"{provider}/{model}", "api_base": base, "api_key": "none", "messages": ask}
    answer = litellm.completion(**asked)
    assert "21" in answer.choices[0].message.content, provider
    chunks = litellm.completion(**asked, stream=True)
    assert "21" in "".join(one.choices[0].delta.content or "" for one in chunks), provider
    print("ok", provider, flush=True)
try:
    long = [{"role": "user", "content": "garden " * 30_000}]
    litellm.completion(
        model=f"hosted_vllm/{model}", api_base=f"{url}/v1", api_key="none", messages=long
    )
except litellm.ContextWindowExceededError:
    print("ok too long")
