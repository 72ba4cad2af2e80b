"""What is to draft for a served model: whether it can, and what a ring's stages are told.

It must have the words of the model: the same text for each token id, as far as both have it. What
one of them has beyond the other's last is padding. A drafter without a tokenizer of its own is
taken to have the model's words where it has as many: it is made for one model, and its folder need
not carry a copy. Where that is wrong few of its drafts come true, and the ring turns it off.
"""

import logging
from dataclasses import replace
from typing import Any, NamedTuple

from molink.checkpoint.checkpoint import Checkpoint, open_checkpoint
from molink.checkpoint.description import ModelDescription, describe
from molink.checkpoint.draft_layer import first_source, is_assistant, misfit
from molink.checkpoint.layer_sizes import draft_layer_of
from molink.config.groups import DRAFTERS, TAIL_DRAFTERS
from molink.errors import UserError
from molink.printable import plain_line
from molink.serving.foreign_drafters import check_drafts_here
from molink.serving.served_model import ServedModel, load_tokenizer, public_name
from molink.stage_protocol.draft_model import DraftModel

log = logging.getLogger(__name__)


def draft_model(drafter: str, served: ServedModel) -> DraftModel | None:
    """The model that `--drafter` names; None where it names none. One that cannot draft for the
    served model is refused, and a warning says why: a ring serves without."""
    if drafter in DRAFTERS:
        return None
    named = DraftModel(drafter, 1, plain_line(public_name(drafter)))
    try:
        checkpoint = open_checkpoint(drafter)
        check_drafts_here(drafter, checkpoint.config())
        if is_assistant(checkpoint.config()):
            named = replace(named, reads_from=_reads_from(checkpoint, served))
        description = describe(checkpoint)
        _check_words(served, description)
    except (UserError, OSError, ValueError) as error:
        refused = replace(named, refused=str(error), reads_from=None)
        log.warning("%s", refused.trouble)
        return refused
    return replace(named, layers=description.layers)


def _reads_from(checkpoint: Checkpoint, served: ServedModel) -> int:
    """The first layer of the served model that an assistant reads. Raises UserError where it cannot
    draft for that model."""
    config, of_model = checkpoint.config(), served.checkpoint.config()
    if why := misfit(config, of_model, draft_layer_of(checkpoint)):
        raise UserError(f"{why}.")
    return first_source(config, of_model)


class TailDrafts(NamedTuple):
    """Whether the tail drafts with a layer of the checkpoint."""

    drafts: bool = False
    trouble: str = ""
    """Why it does not although it was asked for, in a sentence."""


def tail_drafts(drafter: str, model: str) -> TailDrafts:
    """What the tail does with the checkpoint's layer, as `--drafter` asks. One that is half there,
    or that was asked for and is not there, is named in a warning too: a ring serves without."""
    if drafter not in TAIL_DRAFTERS:
        return TailDrafts()
    layer = draft_layer_of(open_checkpoint(model))
    if layer is not None and not layer.missing:
        return TailDrafts(not is_assistant(open_checkpoint(model).config()))
    if layer is None and drafter != "tail":
        return TailDrafts()
    why = f"no layer for it is known of {public_name(model)}" if layer is None else layer.objection
    sentence = plain_line(f"The ring serves without drafts of its tail: {why}.")
    log.warning("%s", sentence)
    return TailDrafts(trouble=sentence)


def _check_words(served: ServedModel, description: ModelDescription) -> None:
    words, own = served.card.tokenizer, load_tokenizer(description)
    if own is None:
        count, others = description.vocabulary_size, served.description.vocabulary_size
        if count != others:
            raise UserError(f"It has no tokenizer, and {count} words where the model has {others}.")
        log.info("%s has no tokenizer: its words are taken for the model's.", description.name)
    elif words is None:
        raise UserError("The model has no tokenizer, so nobody knows whether their words agree.")
    elif (other := first_difference(words, own)) is not None:
        raise UserError(f"Its words are not the model's: token {other} is another one.")


def first_difference(one: Any, other: Any) -> int | None:
    """The first token id that is not the same word in two tokenizers; None: all are that both could
    have."""
    words = [{id_: word for word, id_ in each.get_vocab().items()} for each in (one, other)]
    ends = range(min(max(each, default=-1) for each in words) + 1)
    return next((id_ for id_ in ends if words[0].get(id_) != words[1].get(id_)), None)
