"""Small model that is to draft for a served one: whether it can, and what a ring's head is told.

It must have the words of the model: the same text for each token id, as far as both have it. What
one of them has beyond the other's last is padding. Two models of which neither has a tokenizer must
have as many words.
"""

import logging
from dataclasses import replace
from typing import Any

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.description import ModelDescription, describe
from molink.config.groups import DRAFTERS
from molink.errors import UserError
from molink.printable import plain_line
from molink.serving.served_model import ServedModel, load_tokenizer, public_name
from molink.stage_protocol.messages import DraftModel

log = logging.getLogger(__name__)


def draft_model(drafter: str, served: ServedModel) -> DraftModel | None:
    """The model that `--drafter` names; None where it names none. One that cannot draft for the
    served model is refused, and a warning says why: a ring serves without."""
    if drafter in DRAFTERS:
        return None
    named = DraftModel(drafter, 1, plain_line(public_name(drafter)))
    try:
        description = describe(open_checkpoint(drafter))
        _check_words(served, description)
    except (UserError, OSError, ValueError) as error:
        refused = replace(named, refused=str(error))
        log.warning("%s", refused.trouble)
        return refused
    return replace(named, layers=description.layers)


def _check_words(served: ServedModel, description: ModelDescription) -> None:
    words, own = served.card.tokenizer, load_tokenizer(description)
    if words is None and own is None:
        count, others = description.vocabulary_size, served.description.vocabulary_size
        if count != others:
            raise UserError(f"It has {count} words, the model {others}, and neither a tokenizer.")
    elif words is None or own is None:
        raise UserError("Without a tokenizer of each it is not known whether their words agree.")
    elif (other := first_difference(words, own)) is not None:
        raise UserError(f"Its words are not the model's: token {other} is another one.")


def first_difference(one: Any, other: Any) -> int | None:
    """The first token id that is not the same word in two tokenizers; None: all are that both could
    have."""
    words = [{id_: word for word, id_ in each.get_vocab().items()} for each in (one, other)]
    ends = range(min(max(each, default=-1) for each in words) + 1)
    return next((id_ for id_ in ends if words[0].get(id_) != words[1].get(id_)), None)
