"""From a model's description to the card that API users see, tokenizer included."""

import time
from typing import Any

from molink.checkpoint.description import ModelDescription
from molink.errors import CheckpointError
from molink.serving.service import ChatTokenizer, ModelCard

__all__ = ["load_tokenizer", "model_card"]

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "spiece.model")
"""A checkpoint with none of these is served for token ids."""


def load_tokenizer(description: ModelDescription) -> ChatTokenizer | None:
    """The checkpoint's tokenizer, None when it has none. Raises CheckpointError when it is
    broken."""
    if not any((description.directory / name).exists() for name in TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer, logging

    logging.set_verbosity_error()  # It warns of long prompts that we refuse with a sentence.

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(description.directory)
    except Exception as error:
        # transformers raises whatever its tokenizer class raises; all of it means the same here.
        raise CheckpointError(
            f"The tokenizer of {description.name} cannot be read ({type(error).__name__}): "
            "repair its files, or remove them to serve token ids."
        ) from error
    checked: ChatTokenizer = tokenizer
    return checked


def model_card(
    name: str, description: ModelDescription, model_len_max: int, tokenizer: ChatTokenizer | None
) -> ModelCard:
    """The card of a model that is about to be served."""
    return ModelCard(
        name=name,
        created_unix_s=int(time.time()),
        vocabulary_size=description.vocabulary_size,
        model_len_max=model_len_max,
        eos_token_ids=description.eos_token_ids,
        tokenizer=tokenizer,
    )
