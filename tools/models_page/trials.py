"""Runs the self-test over every family that the installed transformers knows.

Each trial is a process of its own with limits of time and memory: constructors of some hundred
architectures are somebody else's code, and one of them shall not end the others.
"""

import json
import os
import resource
import select
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)

from molink.checkpoint.description import ModelDescription
from molink.engine.layers.attention_function import ATTENTION_NAME
from molink.engine.layers.experts import EXPERTS_NAME
from molink.engine.model.text_model import text_part
from molink.engine.self_test.self_test import check_architecture
from molink.errors import UnsupportedModelError
from tools.models_page.published import PUBLISHED

__all__ = ["CRASHED", "NO_DECODER", "Trial", "all_trials", "families", "try_config", "wholes"]

SECONDS_MAX = 60
"""The slowest trial takes five."""

MEMORY_BYTES_MAX = 7 << 30
"""Of a trial: the largest miniature takes a tenth of it."""

NO_DEFAULTS = "Its config class has no defaults"
CRASHED = "Its self-test breaks off"
NO_DECODER = "It is no decoder-only language model."


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of one self-test."""

    name: str
    """A model type, or the name of a published checkpoint."""
    model_type: str
    text_type: str
    """Of the text model, which is the same where the family takes text alone."""
    served: bool
    why: str = ""
    """The self-test's sentence where it is not."""


def families() -> list[str]:
    """Model types of all causal-LM families."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def wholes() -> list[str]:
    """Model types that take more than text and are no causal-LM families themselves."""
    names = {*MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, *MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES}
    return sorted(names - set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))


def all_trials(done: Callable[[Trial], None], known: Mapping[str, Trial]) -> Iterator[Trial]:
    """Try every family with its defaults, and every published setting, but for those whose trials
    are `known`; `done` hears of each that was run."""
    rows: list[tuple[str, str, dict[str, Any]]] = []
    rows += [(name, name, {}) for name in [*families(), *wholes()]]
    rows += [(one.name, one.model_type, one.settings) for one in PUBLISHED]
    for name, model_type, settings in rows:
        if name in known:
            yield known[name]
            continue
        trial = _apart(name, model_type, settings)
        done(trial)
        yield trial


def try_config(name: str, model_type: str, settings: dict[str, Any]) -> Trial:
    """Run the self-test for one config."""
    try:
        config = CONFIG_MAPPING[model_type](**settings)
    except Exception as error:
        # Whatever a config class raises that has no defaults to stand on.
        return Trial(name, model_type, "", False, f"{NO_DEFAULTS}: {_line(error)}.")
    text = text_part(config)
    if text is None:
        return Trial(name, model_type, "", False, NO_DECODER)
    text._attn_implementation, text._experts_implementation = ATTENTION_NAME, EXPERTS_NAME
    try:
        check_architecture(text, _description(name, text))
    except UnsupportedModelError as error:
        why = NO_DECODER if _encodes(text, str(error)) else _sentence(str(error))
        return Trial(name, model_type, text.model_type, False, why)
    except AttributeError as error:
        return Trial(name, model_type, text.model_type, False, f"Its config: {_line(error)}.")
    return Trial(name, model_type, text.model_type, True)


def _encodes(config: Any, why: str) -> bool:
    """Whether a family that could not be cut is BERT's kind, whose config may make it decode."""
    return getattr(config, "is_decoder", True) is False and "cannot be cut" in why


def _description(name: str, config: Any) -> ModelDescription:
    return ModelDescription(
        name=name,
        directory=Path(),
        model_type=config.model_type,
        layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        vocabulary_size=config.vocab_size,
        model_len_max=4096,
        eos_token_ids=(),
        dtype="float32",
    )


def _sentence(text: str) -> str:
    """What the self-test says, without the name that the page has beside it."""
    _, found, reason = text.partition(") cannot be served: ")
    sentence = reason if found else text
    return f"{sentence[0].upper()}{sentence[1:]}."


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _apart(name: str, model_type: str, settings: dict[str, Any]) -> Trial:
    """`try_config` in a process of its own."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        _child(send, name, model_type, settings)
    os.close(send)
    try:
        answer = _all_of(receive)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(receive)
    if not answer:
        return Trial(
            name, model_type, "", False, "Its self-test takes too long or too much memory."
        )
    return Trial(**json.loads(answer))


def _child(send: int, name: str, model_type: str, settings: dict[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        trial = try_config(name, model_type, settings)
    except Exception as error:
        # Not the family's fault but ours; a test refuses a page that has it.
        trial = Trial(name, model_type, "", False, f"{CRASHED}: {_line(error)}.")
    try:
        os.write(send, json.dumps(asdict(trial)).encode())
    finally:
        os._exit(0)


def _all_of(receive: int) -> bytes:
    parts: list[bytes] = []
    while select.select([receive], [], [], SECONDS_MAX)[0]:
        part = os.read(receive, 65536)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return b""
