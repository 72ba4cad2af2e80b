"""The request that a ring is warmed up with, the same in both halves. Pure."""

__all__ = ["WARM_UP_OUTPUT_TOKENS", "warm_up_tokens"]

WARM_UP_PROMPT_TOKENS = 600
"""A second of prefill on a slow link: the estimates stand before anything is counted."""

WARM_UP_OUTPUT_TOKENS = 8
"""The head has seen a few rounds of decode."""


def warm_up_tokens(longest: int) -> int:
    """Of its prompt: no longer than the longest one to come, which the model can hold."""
    return min(WARM_UP_PROMPT_TOKENS, longest)
