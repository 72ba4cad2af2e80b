"""Model that drafts on a ring's head or tail, as a plan counts it and as that is told of it.

Its weights and KV take the head's memory beside all else, so a plan counts them there, in the
formats of numbers in which stages compute. How long it takes there is told by the weights that a
row reads, in layers of the served model, which nodes have timed. It is a part of every stage's
work, of which whoever holds the first layer makes use: so standbys and neighbours know of it before
they become heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from molink.checkpoint.checkpoint import Checkpoint, open_checkpoint
from molink.checkpoint.draft_layer import DraftLayer, first_source, misfit
from molink.checkpoint.layer_sizes import draft_layer_of, planned_model
from molink.checkpoint.layers_together import tied_from
from molink.checkpoint.model_shape import ModelShape, PlannedModel
from molink.control.messages.base import SENTENCE_CHARACTERS_MAX
from molink.control.messages.payloads import AssignedDrafter, WeightsSource
from molink.errors import UserError
from molink.stage_protocol.draft_model import DRAFTER_KV_TOKENS_MAX, DraftModel
from molink_scheduler.model_cost import ModelCost

USERS = 16
"""Users for whose usual requests it has KV; further ones are served without drafts."""

NO_ROOM = "no PC has room for it beside the layers of its stage."
TOO_LATE = "the new PC of its stage could not have fetched it in time."


@dataclass(frozen=True, slots=True)
class PlannedDrafter:
    """Model that drafts, with its bytes."""

    assigned: AssignedDrafter
    planned: PlannedModel | None = None
    """The shape and costs of a small model; None: it is none, or refused."""
    assistant: DraftLayer | None = None
    """The layers of one that drafts on the tail; None: it is none, or refused."""

    @classmethod
    def named(cls, planned: PlannedModel, context_tokens: int) -> "PlannedDrafter":
        """A model of which only sizes are known, for requests of usually so many tokens."""
        kv_tokens = min(DRAFTER_KV_TOKENS_MAX, USERS * context_tokens)
        source, layers = WeightsSource(model=planned.name), planned.shape.layers
        assigned = AssignedDrafter(weights=source, layers=layers, kv_tokens=kv_tokens)
        return cls(assigned, planned)

    @classmethod
    def assisting(cls, drafter: Checkpoint, model: str) -> "PlannedDrafter":
        """An assistant in a folder for a model, by both config.json. Raises UserError where it
        cannot draft for that."""
        config, of_model = drafter.config(), open_checkpoint(model).config()
        layer = draft_layer_of(drafter)
        if why := misfit(config, of_model, layer):
            raise UserError(f"{drafter.name} does not draft: {why}.")
        source = WeightsSource(model=drafter.name)
        first = first_source(config, of_model)
        return cls(
            AssignedDrafter(weights=source, layers=1, kv_tokens=1, reads_from=first), None, layer
        )

    @classmethod
    def of(cls, drafter: DraftModel, context_tokens: int) -> "PlannedDrafter":
        """The model that a coordinator was told of, for requests of usually so many tokens; refused
        where its sizes are not known."""
        assigned = AssignedDrafter(
            weights=WeightsSource(model=drafter.name),
            layers=drafter.layers,
            kv_tokens=min(drafter.kv_tokens, USERS * context_tokens),
            refused=drafter.refused[:SENTENCE_CHARACTERS_MAX],
            reads_from=drafter.reads_from,
        )
        if drafter.refused:
            return cls(assigned)
        try:
            hub_id = _checked(checkpoint := open_checkpoint(drafter.model))
            assistant = None if drafter.reads_from is None else draft_layer_of(checkpoint)
            planned = planned_model(drafter.model) if drafter.reads_from is None else None
        except UserError as error:
            return cls(refused(assigned, str(error)))
        source = WeightsSource(model=hub_id or drafter.name, from_hub=bool(hub_id))
        return cls(assigned.model_copy(update={"weights": source}), planned, assistant)

    def beside(self, served: PlannedModel) -> PlannedModel:
        """The served model with the costs of this one in its head, or in its tail."""
        costs, shape = dict(served.costs), served.shape
        for size, cost in served.costs.items():
            if self.planned is not None:
                costs[size] = self._beside(cost, shape, self.planned, size)
            if self.drafts_at_tail and self.assigned.reads_from is not None:
                costs[size] = self._behind(cost, shape, self.assigned.reads_from, size)
        return replace(served, costs=costs)

    @property
    def drafts_at_tail(self) -> bool:
        """Whether it is an assistant, which is not refused."""
        return self.assigned.reads_from is not None and not self.assigned.refused

    def _behind(
        self, cost: ModelCost, served: ModelShape, first: int, element_bytes: int
    ) -> ModelCost:
        """The costs with an assistant on the tail, which has all layers from `first` on. Of one
        whose files are not here no size is known."""
        held = self.assistant.held_bytes(element_bytes) if self.assistant is not None else 0
        return replace(
            cost,
            drafter_bytes=held,
            drafter_file_bytes=self.assistant.file_bytes if self.assistant is not None else 0,
            drafter_layers=held / _read_bytes(served, element_bytes),
            drafter_at_tail=True,
            together=tied_from(cost.together, first, cost.layers),
        )

    def _beside(
        self, cost: ModelCost, served: ModelShape, small: PlannedModel, element_bytes: int
    ) -> ModelCost:
        own, shape = small.costs[element_bytes], small.shape
        held = own.stage_bytes(0, own.layers) + self.assigned.kv_tokens * sum(own.kept_of_token)
        read = shape.layers * _read_bytes(shape, element_bytes)
        read += shape.head_parameters * element_bytes
        return replace(
            cost,
            drafter_bytes=held,
            drafter_file_bytes=own.fetched_bytes(0, own.layers),
            drafter_layers=read / _read_bytes(served, element_bytes),
        )


def _read_bytes(shape: ModelShape, element_bytes: int) -> float:
    """Bytes of weights that a row reads in one layer: not those of experts that it does not
    choose."""
    one = replace(shape, dtype_bytes=element_bytes)
    return one.dense_bytes + one.experts_per_token * one.expert_bytes


def _checked(checkpoint: Checkpoint) -> str | None:
    """Its hub id; None: it is a folder. Raises CheckpointError for a folder that lacks weights."""
    if checkpoint.hub_id is None:
        for name in sorted(set(checkpoint.weight_map().values())):
            checkpoint.weight_file(name)
    return checkpoint.hub_id


def refused(drafter: AssignedDrafter, why: str) -> AssignedDrafter:
    """The same model, which is not to draft."""
    return drafter.model_copy(update={"refused": why[:SENTENCE_CHARACTERS_MAX]})


def undrafted(costs: Mapping[int, ModelCost]) -> dict[int, ModelCost]:
    """The costs without a model that drafts; layers that an assistant reads stay together."""
    return {
        size: replace(
            cost,
            drafter_bytes=0,
            drafter_file_bytes=0,
            drafter_layers=0.0,
            drafter_at_tail=False,
        )
        for size, cost in costs.items()
    }
