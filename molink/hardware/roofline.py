"""Roofline of a step's time by the model's shape and the device's rates, in named parts.

    step = hypot(weights, flops) + max(kv, attention flops) + output head + overhead

*Within* a matrix product weights stream in while the multipliers work, so the two overlap, though
not perfectly: near the balance each waits for the other. The root of the sum of squares is the
larger one far from the balance and 1.4 times it there. Over Vidur's measured kernels (A100, A40,
H100; 259 to 451 numbers of rows up to 4,096) it errs by 2 to 7 % in the median and 29 % at worst;
the plain maximum is 28 % short for 128 rows on an A100, and 48 % at worst. *Between* kernels
nothing overlaps: attention, the output head and the fixed costs are added. Attention of decode
reads KV and hardly multiplies; that of long spans is the reverse.

All fields of a cost are seconds, worked out once: a step then costs a few multiplications, which
matters when a thousand nodes are simulated.

A placement counts with straight lines instead: so much for a step, so much for each row. The
roofline bends where reading weights and multiplying meet, and where more rows want more experts;
the line of `estimated_times` goes through a single row and through as many as a busy micro-batch
has.
"""

from dataclasses import dataclass
from math import hypot

from molink.checkpoint.model_shape import PLAIN, ModelShape
from molink.errors import UserError
from molink.hardware.format_times import BILLION, FormatTimes
from molink.hardware.gpu import Gpu
from molink_scheduler.batch import DECODE, PREFILL, BatchClass

BUSY_ROWS = 8
"""Rows of a micro-batch of a busy ring: 64 users in eight of them."""

SPAN_ROWS = 128
"""Rows of a span of a prompt, as the head cuts them."""

_PartsS = tuple[float, float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class StepParts:
    """Seconds of one step, part by part."""

    weights_s: float
    """Seconds of reading the layers' weights."""
    flops_s: float
    """Seconds of multiplying with them; overlaps with reading."""
    kv_s: float
    """Seconds of reading keys and values."""
    attention_flops_s: float
    """Seconds of multiplying with keys and values; overlaps with reading them."""
    output_s: float
    """Seconds of the tail's logits."""
    overhead_s: float

    @property
    def total_s(self) -> float:
        """Seconds of the whole step."""
        return (
            hypot(self.weights_s, self.flops_s)
            + max(self.kv_s, self.attention_flops_s)
            + self.output_s
            + self.overhead_s
        )


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """The cost of one stage; `stage_cost` makes it."""

    shape: ModelShape
    dense_weights_s: float
    """Reading what every row passes."""
    expert_weights_s: float
    """Reading one expert of every layer."""
    row_flops_s: float
    kv_token_s: float
    """Reading one token's keys and values in every layer."""
    attention_pair_s: float
    """Multiplying one row with one token's keys and values in every layer."""
    decode_pair_s: float
    """Seconds of multiplying a decode row with one token's keys and values in every layer."""
    expansion_s: float
    """Making one token's keys and values of its latent row in every layer."""
    output_weights_s: float
    output_row_s: float
    step_overhead_s: float
    row_overhead_s: float

    def step_s(self, batch_class: BatchClass, rows: int, kv_tokens: int, sequences: int) -> float:
        """Seconds of one step, see `StepCost`."""
        weights_s, flops_s, kv_s, attention_s, output_s, overhead_s = self._parts_s(
            batch_class, rows, kv_tokens, sequences
        )
        return hypot(weights_s, flops_s) + max(kv_s, attention_s) + output_s + overhead_s

    def parts(
        self, batch_class: BatchClass, rows: int, kv_tokens: int, sequences: int
    ) -> StepParts:
        """Seconds of one step, part by part."""
        return StepParts(*self._parts_s(batch_class, rows, kv_tokens, sequences))

    def _parts_s(
        self, batch_class: BatchClass, rows: int, kv_tokens: int, sequences: int
    ) -> _PartsS:
        """Seconds of the parts of a step, in the order of `StepParts`."""
        shape = self.shape
        experts = 1 if shape.experts == 1 else shape.experts_hit(rows)
        is_decode = batch_class is DECODE
        if is_decode:
            attention_s = kv_tokens * self.decode_pair_s
        else:
            pairs = _attended_pairs(rows, kv_tokens, sequences)
            # Those of the rows themselves are among their matrices.
            attention_s = pairs * self.attention_pair_s + (kv_tokens - rows) * self.expansion_s
        return (
            self.dense_weights_s + experts * self.expert_weights_s,
            rows * self.row_flops_s,
            kv_tokens * self.kv_token_s,
            attention_s,
            hypot(self.output_weights_s, sequences * self.output_row_s),
            self.step_overhead_s + rows * self.row_overhead_s,
        )


def stage_cost(
    shape: ModelShape, gpu: Gpu, layers: int, is_head: bool = False, is_tail: bool = False
) -> RooflineCost:
    """The cost of a stage of `layers` layers of the model on this device.

    A head looks its rows up in the embedding table, which costs nothing that is worth counting. A
    tail computes logits for one row of each sequence, in spans of a prompt too: of a prompt in n
    spans this counts n times what happens once. Raises UserError when the model has fewer layers.
    """
    check_layers(shape, layers)
    multiply_s = 1 / gpu.flops_per_s
    plain, attention, experts = (
        gpu.format_times(bits, shape.dtype_bytes)
        for bits in (PLAIN, shape.attention_weights, shape.weights)
    )
    read_s, row_s = _layer_s(shape, plain, attention, experts)
    output_parameters = shape.head_parameters if is_tail else 0
    value_s = gpu.value_overhead_s * shape.hidden_size
    return RooflineCost(
        shape=shape,
        dense_weights_s=layers * read_s,
        expert_weights_s=layers * shape.expert_parameters / BILLION * experts.read_s,
        row_flops_s=layers * row_s,
        kv_token_s=layers * shape.kv_token_bytes / gpu.kv_bytes_per_s,
        attention_pair_s=layers * 2 * shape.attention_width * multiply_s,
        decode_pair_s=layers * 2 * shape.decode_attention_width * multiply_s,
        expansion_s=layers * 2 * shape.expansion_parameters * multiply_s,
        output_weights_s=output_parameters / BILLION * plain.read_s,
        output_row_s=output_parameters / BILLION * plain.row_s,
        step_overhead_s=gpu.step_overhead_s + layers * gpu.layer_overhead_s,
        row_overhead_s=layers * value_s,
    )


def _layer_s(
    shape: ModelShape, plain: FormatTimes, attention: FormatTimes, experts: FormatTimes
) -> tuple[float, float]:
    """Seconds of one layer: to read what every row passes, and to multiply one row with all of its
    own. A shared expert is held as the others are, a router plain."""
    active = shape.shared_parameters + shape.experts_per_token * shape.expert_parameters
    read = (
        shape.attention_parameters * attention.read_s
        + shape.shared_parameters * experts.read_s
        + shape.router_parameters * plain.read_s
    )
    multiplied = (
        shape.attention_parameters * attention.row_s
        + active * experts.row_s
        + shape.router_parameters * plain.row_s
    )
    return read / BILLION, multiplied / BILLION


def check_layers(shape: ModelShape, layers: int) -> None:
    """Raises UserError when a stage of the model cannot have so many layers."""
    if not 1 <= layers <= shape.layers:
        raise UserError(f"a stage of {shape.name} takes 1 to {shape.layers} layers, got {layers}.")


def _attended_pairs(rows: int, kv_tokens: int, sequences: int) -> float:
    """Row times key, over a batch of spans: a row attends to itself and all before it.

    Spans of one batch count as equally long.
    """
    return rows * (kv_tokens - rows / 2) / max(1, sequences)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Straight lines of a PC's step times, as `molink_scheduler.placement.NodeFacts` takes them.

    `decode` and `prefill` are of one layer, `step_fixed_s` of a stage's step, `head` of the output
    matrix.
    """

    decode_fixed_s: float
    decode_row_s: float
    prefill_row_s: float
    step_fixed_s: float = 0.0
    head_row_s: float = 0.0
    head_fixed_s: float = 0.0


def estimated_times(shape: ModelShape, device: Gpu, context_tokens: int) -> StepTimes:
    """Times of one layer of the model on a device, with so many tokens of KV for each user."""
    # Through one row and through BUSY_ROWS goes a line: its slope is a row's time, and what it has
    # at no rows is fixed. The step's own start is counted once for a stage, not for each layer.
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
