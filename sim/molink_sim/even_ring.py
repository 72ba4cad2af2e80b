"""The ring of an experiment: one model, equal devices, equal links."""

from molink.config.layer_split import even_split
from molink_sim.hardware import gpu, kv_tokens, model_shape, stage_cost
from molink_sim.scenario import LinkSpec, RingSpec, StageSpec

__all__ = ["even_ring"]


def even_ring(
    model: str,
    gpu_name: str,
    stages: int,
    link: LinkSpec,
    *,
    upload_mbps: float | None = None,
    kv_tokens_max: int | None = None,
    coordinator_one_way_s: float = 0.0,
) -> RingSpec:
    """`stages` devices of one kind with the model's layers split evenly.

    Raises UserError for a model, device or split that cannot be, and when a stage does not fit.
    """
    shape, device = model_shape(model), gpu(gpu_name)
    found: list[StageSpec] = []
    for number, (first, end) in enumerate(even_split(shape.layers, stages)):
        place = {"is_head": number == 0, "is_tail": number == stages - 1}
        cost = stage_cost(shape, device, end - first, **place)
        tokens = kv_tokens(shape, device, end - first, **place)
        tokens = min(tokens, kv_tokens_max or tokens)
        found.append(StageSpec(end - first, cost, tokens, upload_mbps, f"{gpu_name} {number}"))
    return RingSpec(tuple(found), (link,) * stages, shape.row_bytes, coordinator_one_way_s)
