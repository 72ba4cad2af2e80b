"""Catalogue of models for a cluster's PCs, by what they have measured and by the same placement.

All plans are made in one process beside the coordinator. A PC has timed a layer of the model that
is served; of every other it is counted by its times of the weights' format.
"""

from collections.abc import Sequence

from molink.catalogue.fields import answer_fields
from molink.catalogue.fits import Facts, catalogue_rows, question_of
from molink.checkpoint.catalogue.entries import CatalogueEntry, catalogue
from molink.checkpoint.model_shape import PlannedModel
from molink.coordinator.nodes.node import Node
from molink.coordinator.planning.placement_facts import ELEMENT_BYTES, FactsMaker
from molink.coordinator.planning.plan_process import plans_beside
from molink.json_object import JsonObject
from molink_scheduler.placement import Network, NodeFacts

PCS_MAX = 16
"""PCs that are planned with, those that lend most: for more, so many plans take minutes."""


async def cluster_catalogue(
    nodes: Sequence[Node], dtype: str, entries: Sequence[CatalogueEntry] | None = None
) -> JsonObject:
    """The answer of `GET /catalogue` for measured nodes whose stages compute in `dtype`; without
    `entries` of the whole catalogue. Raises StageError when the process that plans has failed."""
    entries = catalogue() if entries is None else entries
    lent = {node.node_id: _lent_bytes(node) for node in nodes}
    nodes = sorted(nodes, key=lambda node: lent[node.node_id], reverse=True)[:PCS_MAX]
    facts = _facts(nodes, dtype)
    questions = {
        (entry.name, form): question_of(entry, form, facts)
        for entry in entries
        if not entry.refused
        for form in entry.formats
    }
    answers = await plans_beside(list(questions.values()))
    plans = dict(zip(questions, zip(questions.values(), answers, strict=True), strict=True))
    rows = catalogue_rows(entries, lambda entry, form: plans[entry.name, form])
    return answer_fields([(node.name, lent[node.node_id]) for node in nodes], rows)


def _lent_bytes(node: Node) -> int:
    assert node.profile is not None, "only measured nodes are planned"
    return node.profile.devices[0].free_bytes


def _facts(nodes: Sequence[Node], dtype: str) -> Facts:
    def facts(planned: PlannedModel) -> tuple[list[NodeFacts], Network]:
        shape, stored = planned.shape, ELEMENT_BYTES["bfloat16"]
        output_layers = 2 * shape.head_parameters / shape.row_flops
        maker = FactsMaker(planned.costs, stored, dtype, output_layers, shape, planned.name)
        return maker.of(nodes)

    return facts
