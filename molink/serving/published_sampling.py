"""How tokens are drawn where a request does not say: as the model's makers publish it.

Users call a model bad whose makers' temperature nobody reads. So where a request says nothing,
`generation_config.json` does, as in vLLM.
"""

from dataclasses import fields
from typing import Any

from molink.checkpoint.checkpoint import Checkpoint
from molink.checkpoint.description import generation_config
from molink.errors import CheckpointError
from molink.serving.service import SamplingDefaults
from molink_scheduler.request import SamplingParams

__all__ = ["published_sampling"]


def published_sampling(checkpoint: Checkpoint) -> SamplingDefaults:
    """The settings in its generation_config.json, where it has some. Raises CheckpointError for one
    that is none."""
    given = generation_config(checkpoint)
    names = [one.name for one in fields(SamplingDefaults)]
    said = {name: given[name] for name in names if given.get(name) is not None}
    for name, value in said.items():
        said[name] = _checked(checkpoint.name, name, value)
    return SamplingDefaults(**said)


def _checked(model: str, name: str, value: Any) -> Any:
    try:
        if type(value) not in (int, float):
            raise TypeError
        if name == "top_k":
            value = _whole(value)
        SamplingParams(max_tokens=1, **{name: value})
    except (ValueError, TypeError, OverflowError):
        raise CheckpointError(
            f"generation_config.json of {model} gives {value!r:.40} for {name}: correct it, or "
            "start with --generation-config none"
        ) from None
    return value


def _whole(value: float) -> int:
    """-1 keeps every token, too. Raises ValueError for a fraction."""
    if value != int(value):
        raise ValueError
    return 0 if value == -1 else int(value)
