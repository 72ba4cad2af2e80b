"""How many tokens of KV a stage can hold: what its weights leave of the device's memory."""

from molink.checkpoint.model_shape import ModelShape
from molink.errors import UserError
from molink.hardware.gpu import Gpu
from molink.hardware.roofline import check_layers

__all__ = ["SHARE_DEFAULT", "kv_tokens"]

SHARE_DEFAULT = 0.9
"""Of the device's memory; the rest is for activations, the driver and the display. vLLM's default
too (`gpu_memory_utilization`)."""


def kv_tokens(
    shape: ModelShape,
    gpu: Gpu,
    layers: int,
    share: float = SHARE_DEFAULT,
    *,
    is_head: bool = False,
    is_tail: bool = False,
) -> int:
    """Tokens that fit beside the weights of `layers` layers into `share` of the memory.

    Raises UserError, which says by how much, when the weights leave no room for one token.
    """
    check_layers(shape, layers)
    if not 0 < share <= 1:
        raise UserError(f"a stage takes a share of memory above 0 and up to 1, got {share}.")
    usable = round(gpu.memory_bytes * share)
    left = usable - shape.stage_bytes(layers, is_head, is_tail)
    tokens = left // (layers * shape.kv_token_bytes)
    if tokens < 1:
        missing = layers * shape.kv_token_bytes - left
        raise UserError(
            f"{layers} layers of {shape.name} do not fit on {gpu.name}: {missing / 1e9:.2f} GB are "
            f"missing of {usable / 1e9:.1f} GB; give the stage fewer layers or more memory."
        )
    return tokens
