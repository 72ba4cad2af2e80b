"""The ring of an experiment: one model, equal devices, equal links."""

from molink.checkpoint.model_config import model_shape
from molink.checkpoint.model_shape import ModelShape
from molink.config.layer_split import even_split
from molink.errors import UserError
from molink.hardware.gpu import Gpu, gpu
from molink.hardware.roofline import check_layers, stage_cost
from molink_scheduler.units import gb_text
from molink_sim.scenario import LinkSpec, RingSpec, StageSpec

__all__ = ["MEMORY_SHARE", "even_ring", "kv_tokens"]

MEMORY_SHARE = 0.9
"""Share of the device's memory that is used; the rest is for activations, the driver and the
display. vLLM's default too (`gpu_memory_utilization`)."""


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
    split = even_split(shape.layers, stages, shape.together, "--stages")
    for number, (first, end) in enumerate(split):
        place = {"is_head": number == 0, "is_tail": number == stages - 1}
        cost = stage_cost(shape, device, end - first, **place)
        tokens = kv_tokens(shape, device, end - first, **place)
        tokens = min(tokens, kv_tokens_max or tokens)
        found.append(StageSpec(end - first, cost, tokens, upload_mbps, f"{gpu_name} {number}"))
    return RingSpec(tuple(found), (link,) * stages, shape.row_bytes, coordinator_one_way_s)


def kv_tokens(
    shape: ModelShape, gpu: Gpu, layers: int, *, is_head: bool = False, is_tail: bool = False
) -> int:
    """Tokens that fit beside the weights of `layers` layers into the memory used.

    Raises UserError, which says by how much, when the weights leave no room for one token.
    """
    check_layers(shape, layers)
    usable = round(gpu.memory_bytes * MEMORY_SHARE)
    left = usable - shape.stage_bytes(layers, is_head, is_tail)
    tokens = left // (layers * shape.kv_token_bytes)
    if tokens < 1:
        missing = layers * shape.kv_token_bytes - left
        raise UserError(
            f"{layers} layers of {shape.name} do not fit on {gpu.name}: {gb_text(missing, 2)} are "
            f"missing of {gb_text(usable)}; give the stage fewer layers or more memory."
        )
    return tokens
