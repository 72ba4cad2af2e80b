"""Which PC takes how many layers: one after the other to whoever is then the fastest.

Each PC gets a layer, then every further layer goes to the PC whose decode step would be shortest
with it, among those that have memory for it and for the KV of `KV_TOKENS_MIN` tokens beside. So
slow and small PCs get few layers and the slowest stage is as fast as it can be. The PCs stay in the
order in which they are listed; which order, and who is better left out, is the placement's business
and not decided here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from molink.config.node_file import ListedNode
from molink.errors import UserError
from molink_scheduler.batch import BatchClass
from molink_sim.forecast.nodes import device_of
from molink_sim.hardware import ModelShape, kv_tokens, stage_cost

__all__ = ["KV_TOKENS_MIN", "Share", "split_layers"]

KV_TOKENS_MIN = 4096
"""Four requests of the usual length: a ring with room for fewer serves nobody well."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one PC takes."""

    node: ListedNode
    layers: int
    kv_tokens: int
    weights_bytes: int


def split_layers(shape: ModelShape, nodes: Sequence[ListedNode]) -> tuple[Share, ...]:
    """The layers of each PC, in order. Raises UserError, with the memory that is missing, when the
    model does not fit."""
    if len(nodes) > shape.layers:
        raise UserError(
            f"{shape.name} has {shape.layers} layers, too few for {len(nodes)} PCs: leave "
            f"{len(nodes) - shape.layers} out."
        )
    room = [_layers_max(shape, nodes, index) for index in range(len(nodes))]
    _check_room(shape, nodes, room)
    counts = [1] * len(nodes)
    for _ in range(shape.layers - len(nodes)):
        open_to = [index for index in range(len(nodes)) if counts[index] < room[index]]
        taker = min(open_to, key=lambda i: (_step_s(shape, nodes, i, counts[i] + 1), i))
        counts[taker] += 1
    return tuple(_share(shape, nodes, index, count) for index, count in enumerate(counts))


def _share(shape: ModelShape, nodes: Sequence[ListedNode], index: int, layers: int) -> Share:
    node, place = nodes[index], _place(nodes, index)
    device = device_of(node)
    tokens = kv_tokens(shape, device, layers, node.lent_bytes / device.memory_bytes, **place)
    return Share(node, layers, tokens, shape.stage_bytes(layers, **place))


def _place(nodes: Sequence[ListedNode], index: int) -> dict[str, bool]:
    return {"is_head": index == 0, "is_tail": index == len(nodes) - 1}


def _usable_bytes(shape: ModelShape, nodes: Sequence[ListedNode], index: int) -> int:
    """For layers and their KV."""
    return nodes[index].lent_bytes - shape.stage_bytes(0, **_place(nodes, index))


def _bytes_per_layer(shape: ModelShape) -> int:
    return shape.layer_bytes + KV_TOKENS_MIN * shape.kv_token_bytes


def _layers_max(shape: ModelShape, nodes: Sequence[ListedNode], index: int) -> int:
    layers = _usable_bytes(shape, nodes, index) // _bytes_per_layer(shape)
    return max(0, min(shape.layers, layers))


def _check_room(shape: ModelShape, nodes: Sequence[ListedNode], room: Sequence[int]) -> None:
    missing_layers = shape.layers - sum(room)
    if missing_layers > 0:
        missing = missing_layers * _bytes_per_layer(shape)
        raise UserError(
            f"these PCs cannot hold {shape.name}: {missing_layers} of its {shape.layers} layers, "
            f"{missing / 1e9:.1f} GB, find no room; add PCs or take a smaller model."
        )
    if 0 in room:
        node = nodes[room.index(0)]
        raise UserError(
            f"{node.name} cannot hold one layer of {shape.name}: leave it out of the ring."
        )


def _step_s(shape: ModelShape, nodes: Sequence[ListedNode], index: int, layers: int) -> float:
    """Of decode for one request."""
    cost = stage_cost(shape, device_of(nodes[index]), layers, **_place(nodes, index))
    return cost.step_s(BatchClass.DECODE, 1, KV_TOKENS_MIN, 1)
