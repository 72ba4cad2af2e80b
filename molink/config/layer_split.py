"""Layer split over the stages: an even one, or the operator's own (`--layers 0-3,4-7,8-11`).

People count the last layer in, as everything that is shown to them does; ranges that each begin
with the number at which the one before ends (`0-4,4-8,8-12`), as scripts have them, are taken too.
"""

from itertools import accumulate, pairwise

from molink.checkpoint.layers_together import Runs, check_cuts
from molink.errors import UserError
from molink_scheduler.placement.split import even

LayerRange = tuple[int, int]


def even_split(
    layer_count: int, node_count: int, together: Runs = (), option: str = "--nodes"
) -> list[LayerRange]:
    """Layer ranges [a, b) of nearly equal length, the longer ones first, as far as the layers allow
    that stay together. `option` is what sets `node_count`.

    Raises UserError when a node would be left without a layer.
    """
    if node_count < 1:
        raise UserError(f"A ring needs at least one node, got {option} {node_count}.")
    parted = {layer for start, end in together for layer in range(start + 1, end)}
    may_end = [layer not in parted for layer in range(layer_count + 1)]
    counts = even(layer_count, node_count, may_end)
    if counts is None:
        most = sum(may_end[1:])
        why = "".join(f", of which {start} to {end - 1} stay together" for start, end in together)
        raise UserError(
            f"The model has {layer_count} layers{why}, too few for {node_count} nodes: "
            f"use {option} {most}{' or fewer.' if most > 1 else '.'}"
        )
    return list(pairwise((0, *accumulate(counts))))


def check_layers(text: str, node_count: int) -> list[LayerRange]:
    """The ranges of `--layers`, one a node and each beginning where the one before it ends, as far
    as they can be checked without the model."""
    ranges = [_parse_range(part) for part in text.split(",")]
    if len(ranges) != node_count:
        raise UserError(
            f"--layers names {len(ranges)} ranges for {node_count} nodes: give one each."
        )
    if len(ranges) > 1 and all(after == last + 1 for (_, last), (after, _) in pairwise(ranges)):
        ranges = [(start, last + 1) for start, last in ranges]
    expected = 0
    for start, end in ranges:
        if start >= end:
            raise _no_range(f"{start}-{end}")
        if start != expected:
            kind = "overlap" if start < expected else "leave a gap"
            raise UserError(
                f"--layers {kind} before layer {start}: that range must start at layer {expected}."
            )
        expected = end
    return ranges


def parse_layers(
    text: str, layer_count: int, node_count: int, together: Runs = ()
) -> list[LayerRange]:
    """The ranges of `--layers`; they must cover every layer once, in order, one range a node, and
    part none that stay together."""
    ranges = check_layers(text, node_count)
    start, end = ranges[-1]
    if len(ranges) == 1 and end == layer_count - 1:  # One alone does not tell how it counts.
        ranges, end = [(start, layer_count)], layer_count
    if end != layer_count:
        raise UserError(
            f"--layers end at layer {end - 1}, the model has {layer_count}: "
            f"the last range must end at {layer_count - 1}."
        )
    check_cuts("the model", layer_count, together, ranges)
    return ranges


def _parse_range(part: str) -> LayerRange:
    start, dash, end = part.strip().partition("-")
    if not (dash and start.isdecimal() and end.isdecimal() and int(start) <= int(end)):
        raise _no_range(part.strip())
    return int(start), int(end)


def _no_range(part: str) -> UserError:
    return UserError(f"--layers takes ranges like 0-3,4-7,8-11, got {part!r}.")
