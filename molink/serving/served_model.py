"""Served model: its name for users, how much of it is served, and how its tokens are drawn.

Users call a model bad whose makers' temperature nobody reads. So where a request says nothing,
`generation_config.json` does, as in vLLM.
"""

import logging
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from molink.checkpoint.checkpoint import Checkpoint, open_checkpoint
from molink.checkpoint.description import ModelDescription, describe, generation_config
from molink.checkpoint.end_tokens import end_token_ids
from molink.checkpoint.model_config import text_settings
from molink.config.parsers import AUTO, NONE
from molink.errors import CheckpointError, UserError
from molink.models import DEMO_MODEL_DIR
from molink.serving.model_card import ChatTokenizer, ModelCard, SamplingDefaults
from molink_scheduler.request import SamplingParams

DEMO_MODEL = "demo"
"""The MODEL name of the small model that ships with the project."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "spiece.model")
"""A checkpoint with none of these is served for token ids."""


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Model on disk that is about to be served."""

    path: str
    """A directory as every stage finds it, in whatever directory it starts; or a hub id."""
    checkpoint: Checkpoint
    description: ModelDescription
    card: ModelCard


def read_served_model(
    model: str,
    model_len_max: int | None,
    served_names: tuple[str, ...] = (),
    sampling_settings: str = AUTO,
) -> ServedModel:
    """The model that MODEL names, tokenizer included, which users call `served_names`.
    `sampling_settings`: whether its makers' sampling settings hold, auto or none. Takes seconds.

    Raises UserError (of which CheckpointError and UnsupportedModelError are kinds) when it cannot
    be served, or not for so many tokens.
    """
    path = _path(model)
    checkpoint = open_checkpoint(path)
    description = describe(checkpoint)
    tokenizer = load_tokenizer(description)
    _note_words_without_rows(tokenizer, description)
    card = ModelCard(
        name=public_name(path),
        created_unix_s=int(time.time()),
        vocabulary_size=description.vocabulary_size,
        model_len_max=_checked_length(model_len_max, description),
        eos_token_ids=end_token_ids(description, tokenizer),
        tokenizer=tokenizer,
        served_names=tuple(dict.fromkeys(served_names)),
        sampling=SamplingDefaults()
        if sampling_settings == NONE
        else published_sampling(checkpoint),
        has_latents=bool(text_settings(checkpoint.config()).get("kv_lora_rank")),
    )
    return ServedModel(path, checkpoint, description, card)


def public_name(path: str) -> str:
    """Name of the model for API users: a hub id as it is, of a directory only its own name."""
    return Path(path).resolve().name if Path(path).is_dir() else path


def load_tokenizer(description: ModelDescription) -> ChatTokenizer | None:
    """The checkpoint's tokenizer, None when it has none. Raises CheckpointError when it is
    broken."""
    if not any((description.directory / name).exists() for name in TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer, logging

    logging.set_verbosity_error()  # It warns of long prompts that we refuse with a sentence.

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            description.directory, trust_remote_code=False
        )
    except Exception as error:
        # transformers raises whatever its tokenizer class raises; all of it means the same here.
        raise CheckpointError(
            f"The tokenizer of {description.name} cannot be read ({type(error).__name__}): "
            "repair its files, or remove them to serve token ids."
        ) from error
    names = tokenizer.chat_template if isinstance(tokenizer.chat_template, dict) else {"default"}
    if "default" not in names:
        raise CheckpointError(
            f"{description.name} has chat templates named {', '.join(names)} and no default one: "
            "name the usual one so in its tokenizer_config.json"
        )
    checked: ChatTokenizer = tokenizer
    return checked


def _note_words_without_rows(
    tokenizer: ChatTokenizer | None, description: ModelDescription
) -> None:
    """Say so where the tokenizer has more words than the model: somebody added tokens to it."""
    last = max(tokenizer.get_vocab().values(), default=0) if tokenizer is not None else 0
    if last >= description.vocabulary_size:
        log.warning(
            "The tokenizer of %s has tokens up to %d, the model only %d rows of words: a request "
            "that holds one of the others is refused.",
            description.name,
            last,
            description.vocabulary_size,
        )


def _path(model: str) -> str:
    if model == DEMO_MODEL:
        return str(DEMO_MODEL_DIR)
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def _checked_length(wanted: int | None, description: ModelDescription) -> int:
    longest = description.model_len_max
    stated = description.stated_len_max or longest
    if wanted is not None and wanted > longest:
        raise UserError(
            f"--max-model-len {wanted} is over the model's own {longest}: use that or less."
        )
    length = stated if wanted is None else wanted
    if stated < longest:
        log.warning(
            "%s states %d positions, and its rope is stretched to %d: %d are served, and "
            "--max-model-len takes up to %d.",
            *(description.name, stated, longest, length, longest),
        )
    return length


def published_sampling(checkpoint: Checkpoint) -> SamplingDefaults:
    """The settings in its generation_config.json, where it has some. Raises CheckpointError for a
    setting that is none."""
    given = generation_config(checkpoint)
    names = [one.name for one in fields(SamplingDefaults)]
    said = {name: given[name] for name in names if given.get(name) is not None}
    for name, value in said.items():
        said[name] = _checked_setting(checkpoint.name, name, value)
    return SamplingDefaults(**said)


def _checked_setting(model: str, name: str, value: Any) -> Any:
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
    """The whole number that a setting is, 0 for -1: both keep every token. Raises ValueError for a
    fraction."""
    if value != int(value):
        raise ValueError
    return 0 if value == -1 else int(value)
