"""Fields of OpenAI's requests that we do not implement: which are harmless, and which are refused
by name.

A field that only concerns OpenAI's bookkeeping (`user`, `store`, ...) is dropped. A field that
would change the answer (`tools`, `logit_bias`, ...) is dropped when its value is the one that means
"as usual" and refused otherwise: an answer that silently ignores `response_format` is worse than an
error. Everything else that a schema does not know is refused too, so a misspelt `max_token` is
found at the first request.
"""

from collections.abc import Mapping
from typing import Any

from molink.api.errors import ApiError

__all__ = [
    "CHAT_UNSUPPORTED",
    "COMPLETION_UNSUPPORTED",
    "GENERATE_UNSUPPORTED",
    "MESSAGE_UNSUPPORTED",
    "drop_unsupported",
]

HARMLESS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Accepted with any value: they do not change what is generated."""

COMPLETION_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "echo": (False,),
    "logit_bias": ({},),
    "suffix": (),
}
"""Field to the values that mean the default, besides null."""

CHAT_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}

MESSAGE_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "refusal": (),
    "tool_calls": ([],),
}
"""What a client sends back when it appends an answer's message to the conversation as it came."""

GENERATE_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {}


def drop_unsupported(
    body: dict[str, Any], unsupported: Mapping[str, tuple[Any, ...]], where: str = ""
) -> dict[str, Any]:
    """`body` without harmless fields and without unsupported ones that carry their default;
    raises for others."""
    kept = {}
    for name, value in body.items():
        if name in unsupported:
            _check_default(where + name, value, unsupported[name])
        elif name not in HARMLESS:
            kept[name] = value
    return kept


def _check_default(name: str, value: Any, defaults: tuple[Any, ...]) -> None:
    if value is None or any(type(value) is type(one) and value == one for one in defaults):
        return
    raise ApiError(
        f"'{name}' is not supported by this server: leave it out.",
        param=name,
        code="unsupported_parameter",
    )
