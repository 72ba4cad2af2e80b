"""Step times of a node that a plan counts with.

A node that has timed a layer of the model is planned by that. One that has not yet, because the
coordinator serves another model than when it joined, has told how it multiplies with weights of
each format, and the model's shape and format make step times of them: it need not be waited for.
"""

from dataclasses import replace

from molink.checkpoint.model_shape import ModelShape
from molink.control.messages.payloads import Profile, StepCost
from molink.coordinator.nodes.node import Node
from molink.hardware.format_times import FormatTimes
from molink.hardware.gpu import measured_device
from molink.hardware.roofline import estimated_times

CONTEXT_TOKENS = 128
"""Tokens of context of each row of which nodes time a step."""

SECONDS_MAX = 3600.0
"""Most seconds that a measured step counts as: a node may tell anything of its formats."""


def steps_of(node: Node, model: str, shape: ModelShape | None) -> StepCost:
    """A layer's times on a measured node: of this model as it has timed them; until it has, by its
    times of the weights' format; of an older agent, those of another model."""
    profile = node.profile
    assert profile is not None and node.is_measured, "only measured nodes are planned"
    steps = profile.steps
    if shape is not None and not node.has_timed(model):
        steps = _by_format(shape, profile, model) or steps
    assert steps is not None, "a node without steps is measured by its formats"
    return steps


def _by_format(shape: ModelShape, profile: Profile, model: str) -> StepCost | None:
    """Times of a step by the device's times of plain weights; None: it has not told them."""
    device = profile.devices[0]
    formats = {one.format: FormatTimes(one.read_s, one.row_s) for one in profile.formats}
    known = measured_device(device.kind, formats, device.element_bytes)
    if known is None:
        return None
    here = replace(shape, dtype_bytes=device.element_bytes)
    layer = estimated_times(here, known, CONTEXT_TOKENS)
    return StepCost(
        model=model,
        decode_fixed_s=min(SECONDS_MAX, layer.decode_fixed_s),
        decode_row_s=min(SECONDS_MAX, layer.decode_row_s),
        prefill_row_s=min(SECONDS_MAX, layer.prefill_row_s),
    )
