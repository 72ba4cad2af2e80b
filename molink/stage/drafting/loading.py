"""A small model that drafts beside a head's layers, where one is named.

A stage that becomes its ring's head, by taking a lost one's layers, loads the model then.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from molink.engine_protocol.engine import Engine
from molink.engine_protocol.values import Prepared
from molink.errors import NoRoomError, StageError, UserError
from molink.stage.drafting.drafters import Drafters
from molink.stage.drafting.model_drafter import ModelDrafter
from molink.stage_protocol.draft_model import DraftModel
from molink.stage_protocol.health import DRAFTER_CHARS_MAX
from molink.stage_protocol.messages import LoadStage
from molink_scheduler.kv.blocks import BLOCK_TOKENS

log = logging.getLogger(__name__)


def add_model(
    drafters: Drafters, new_engine: Callable[[], Engine], load: LoadStage, layers: Prepared
) -> str | None:
    """Have the model draft that a head is told to load, beside others; a sentence on why it does
    not, or an assistant on a tail, as the ring serves without."""
    drafter = load.drafter
    if drafter is None or not (layers.is_head if drafter.reads_from is None else layers.is_tail):
        return drafters.trouble
    try:
        if drafter.refused:
            raise UserError(drafter.refused)
        if drafter.reads_from is not None:  # The engine has loaded it, or its log says why not.
            if not layers.loaded.drafts:
                raise UserError("the stage with the last layers could not load it.")
            return drafters.trouble
        drafters.add(_loaded(load, drafter, layers, new_engine()))
    except Exception as error:  # Whatever is wrong with its files, or how large it is.
        drafters.trouble = replace(drafter, refused=str(error) or type(error).__name__).trouble
        if not drafter.refused:  # Else whoever found it out has said so.
            log.warning("%s", drafters.trouble)
    return drafters.trouble


def _loaded(load: LoadStage, drafter: DraftModel, layers: Prepared, engine: Engine) -> ModelDrafter:
    """The model beside the stage's layers, within what they have left of its memory."""
    tokens = min(layers.kv_blocks * BLOCK_TOKENS, drafter.kv_tokens)
    work = replace(
        load.work,
        layers=(0, drafter.layers),
        kv_tokens=tokens,
        kv_dtype="auto",
        kv_host_tokens=0,
        drafts=False,
    )
    lent = load.memory_bytes if layers.loaded.device == "cpu" else None  # A card's limit stands.
    if lent is not None:
        lent -= layers.loaded.weights_bytes + layers.kv_blocks * layers.block_bytes
        if lent <= 0:
            raise NoRoomError("its PC lends no memory beside the layers of the stage.")
    alone = LoadStage(drafter.model, work, load.address, load.stages_here, memory_bytes=lent)
    prepared = engine.prepare(alone, lambda fraction: None)
    if prepared.loaded.state_slots is not None and not prepared.loaded.can_go_back:
        raise StageError("its layers keep states, which cannot go back behind a wrong guess.")
    return ModelDrafter(drafter.name[:DRAFTER_CHARS_MAX], engine, prepared)
