"""What a PC that nobody has measured would take for a layer, by the roofline.

A placement counts with straight lines: so much for a step, so much for each row. The roofline bends
where reading weights and multiplying meet, and where more rows want more experts; the line goes
through a lonely row and through as many as a busy micro-batch has.
"""

from dataclasses import dataclass

from molink.checkpoint.model_shape import ModelShape
from molink.hardware.gpu import Gpu
from molink.hardware.roofline import stage_cost
from molink_scheduler.batch import DECODE, PREFILL

__all__ = ["StepTimes", "estimated_times"]

BUSY_ROWS = 8
"""Of a micro-batch of a busy ring: 64 users in eight of them."""

SPAN_ROWS = 128
"""Of a span of a prompt, as the head cuts them."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds, as `molink_scheduler.placement.NodeFacts` takes them."""

    decode_fixed_s: float
    """Of one layer."""
    decode_row_s: float
    prefill_row_s: float
    step_fixed_s: float = 0.0
    """Of a stage's step."""
    head_row_s: float = 0.0
    """Of the output matrix."""
    head_fixed_s: float = 0.0


def estimated_times(shape: ModelShape, device: Gpu, context_tokens: int) -> StepTimes:
    """Of one layer of the model on a device, with so many tokens of KV for each user."""
    layer = stage_cost(shape, device, 1)
    start_s = device.step_overhead_s
    one_s, busy_s = (
        layer.step_s(DECODE, rows, rows * context_tokens, rows) - start_s for rows in (1, BUSY_ROWS)
    )
    row_s = (busy_s - one_s) / (BUSY_ROWS - 1)
    span_s = layer.step_s(PREFILL, SPAN_ROWS, SPAN_ROWS + context_tokens // 2, 1) - start_s
    tail = stage_cost(shape, device, 1, is_tail=True)
    head_one, head_busy = (tail.parts(DECODE, rows, rows, rows).output_s for rows in (1, BUSY_ROWS))
    head_row_s = (head_busy - head_one) / (BUSY_ROWS - 1)
    return StepTimes(
        decode_fixed_s=max(0.0, one_s - row_s),
        decode_row_s=row_s,
        prefill_row_s=span_s / SPAN_ROWS,
        step_fixed_s=start_s,
        head_row_s=head_row_s,
        head_fixed_s=max(0.0, head_one - head_row_s),
    )
