"""Model that drafts on a ring's head, as a plan counts it and as a head is told of it.

Its weights and KV take the head's memory beside all else, so a plan counts them there, in the
formats of numbers in which stages compute. It is a part of every stage's work, of which whoever
holds the first layer makes use: so standbys and neighbours know of it before they become heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from molink.checkpoint.checkpoint import Checkpoint, open_checkpoint
from molink.checkpoint.layer_sizes import planned_model
from molink.control.messages.base import SENTENCE_CHARACTERS_MAX
from molink.control.messages.payloads import AssignedDrafter, WeightsSource
from molink.errors import UserError
from molink.stage_protocol.messages import DraftModel
from molink_scheduler.model_cost import ModelCost

USERS = 16
"""Users for whose usual requests it has KV; further ones are served without drafts."""

NO_ROOM = "no PC has room for it beside the first layers."
TOO_LATE = "the head's new PC could not have fetched it in time."


@dataclass(frozen=True, slots=True)
class PlannedDrafter:
    """Model that drafts, with its bytes."""

    assigned: AssignedDrafter
    costs: Mapping[int, ModelCost]
    """Costs of the model by the bytes of a number in the stages."""

    @classmethod
    def of(cls, drafter: DraftModel, context_tokens: int) -> "PlannedDrafter":
        """The model that a coordinator was told of, for requests of usually so many tokens; refused
        where its sizes are not known."""
        assigned = AssignedDrafter(
            weights=WeightsSource(model=drafter.name),
            layers=drafter.layers,
            kv_tokens=min(drafter.kv_tokens, USERS * context_tokens),
            refused=drafter.refused[:SENTENCE_CHARACTERS_MAX],
        )
        if drafter.refused:
            return cls(assigned, {})
        try:
            hub_id = _checked(open_checkpoint(drafter.model))
            costs = planned_model(drafter.model).costs
        except UserError as error:
            return cls(refused(assigned, str(error)), {})
        source = WeightsSource(model=hub_id or drafter.name, from_hub=bool(hub_id))
        return cls(assigned.model_copy(update={"weights": source}), costs)

    def beside(self, costs: Mapping[int, ModelCost]) -> dict[int, ModelCost]:
        """The costs of the served model with those of this one in its head."""
        return {
            size: self._beside(cost, self.costs[size]) if self.costs else cost
            for size, cost in costs.items()
        }

    def _beside(self, cost: ModelCost, own: ModelCost) -> ModelCost:
        held = own.stage_bytes(0, own.layers) + self.assigned.kv_tokens * sum(own.kept_of_token)
        return replace(
            cost, drafter_bytes=held, drafter_file_bytes=own.fetched_bytes(0, own.layers)
        )


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
    """The costs without a model that drafts."""
    return {
        size: replace(cost, drafter_bytes=0, drafter_file_bytes=0) for size, cost in costs.items()
    }
