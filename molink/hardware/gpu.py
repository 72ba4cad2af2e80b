"""Rates of devices: memory, bandwidth, arithmetic, how much of each a step reaches, overhead.

Peaks are the manufacturer's: dense fp16 tensor cores with fp32 accumulation (half of what a GeForce
card is advertised with, which is with fp16 accumulation; a quarter of the number with sparsity).
What a step reaches of them is measured by others on layers of real models, and argued at each
constant below.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from molink.checkpoint.model_shape import WeightBits
from molink.errors import UserError
from molink.hardware.cards import card_tables, known_card
from molink.hardware.format_times import (
    BILLION,
    CARD_CORRECTIONS,
    CPU_CORRECTIONS,
    FormatTimes,
)
from molink.printable import near_names, printable_line
from molink_scheduler.units import GB, GIB

MEMORY_EFFICIENCY = 0.78
"""Share of the peak bandwidth at which weights and KV are read. Helix's profiles of one decode
layer at the smallest batches come to 0.79 to 0.83 (L4), 0.76 to 0.79 (A100), 0.71 to 0.75 (T4) and
0.66 to 0.83 (V100); Vidur's matrix products for one row to 0.75 to 0.78 (A100), 0.80 (A40) and 0.77
(H100)."""

COMPUTE_EFFICIENCY = 0.66
"""Share of the peak arithmetic that a whole layer reaches on long prompts, the small kernels
between its matrix products included. Vidur's kernels for 1,024 to 4,096 rows of Llama-2-7B: A100
0.63 to 0.66, A40 0.65 to 0.68, H100 0.64 to 0.67; Helix's A100, whose models are wider: 0.77."""

LAYER_OVERHEAD_S = 20e-6
"""Seconds of a layer beside reading and multiplying: Vidur's norms, rotation, activation and
additions for one row take 24 us on an A100, 21 on an A40 and 19 on an H100."""

STEP_OVERHEAD_S = 200e-6
"""Copying inputs in, starting the graph and hearing that it has ended. Assumed, not measured: it is
3 % of the smallest step of the paper's setting, and what the host's software costs beyond it is
counted with the hop."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device on which a stage runs."""

    name: str
    memory_gib: float
    bandwidth_gb_per_s: float
    """Peak of its memory, 10^9 bytes."""
    tflops: float
    """Peak, 16 bits, dense, 10^12 operations per second."""
    memory_efficiency: float = MEMORY_EFFICIENCY
    compute_efficiency: float = COMPUTE_EFFICIENCY
    kv_efficiency: float = MEMORY_EFFICIENCY
    step_overhead_s: float = STEP_OVERHEAD_S
    layer_overhead_s: float = LAYER_OVERHEAD_S
    value_overhead_s: float = 0.0
    """Seconds for each number of a row in each layer: norms, rotation, activation. 0 where the
    compute efficiency already has it."""
    is_cpu: bool = False
    """Whether formats that were not measured are corrected as a CPU's kernels take them."""
    formats: Mapping[str, FormatTimes] = field(default_factory=dict)
    """Times of formats that were measured on it."""

    def format_times(self, bits: WeightBits, element_bytes: int) -> FormatTimes:
        """Times of products with weights that take `bits` where a number takes `element_bytes`: as
        measured, else by bytes and arithmetic with the format's correction."""
        known = self.formats.get(bits.format)
        if known is not None:
            return known
        plain = self.formats.get("plain") or FormatTimes(
            BILLION * element_bytes / self.bytes_per_s, 2 * BILLION / self.flops_per_s
        )
        corrections = CPU_CORRECTIONS if self.is_cpu else CARD_CORRECTIONS
        return corrections[bits.format].times(bits, element_bytes, plain)

    @property
    def bytes_per_s(self) -> float:
        """Memory as a step reaches it."""
        return self.bandwidth_gb_per_s * GB * self.memory_efficiency

    @property
    def kv_bytes_per_s(self) -> float:
        """Memory as attention reaches it."""
        return self.bandwidth_gb_per_s * GB * self.kv_efficiency

    @property
    def flops_per_s(self) -> float:
        """Arithmetic as a step reaches it."""
        return self.tflops * 1e12 * self.compute_efficiency

    @property
    def memory_bytes(self) -> int:
        """All of its memory."""
        return round(self.memory_gib * GIB)


EXAMPLES = "3060, RTX 4070 Ti, 3080 12GB, 4080 laptop, or for example a100 or cpu"
"""Names for who has written none that is like any."""

CPU = Gpu(
    name="cpu",
    memory_gib=23,
    bandwidth_gb_per_s=16.5,
    tflops=0.222,
    memory_efficiency=1.0,
    compute_efficiency=1.0,
    kv_efficiency=0.3,
    is_cpu=True,
    step_overhead_s=0.1e-3,
    layer_overhead_s=20e-6,
    value_overhead_s=20e-9,
)
"""One thread of the machine of docs/benchmarks, whose figures are rates reached, hence
efficiencies of 1. Four layers of the 88M model (50.3 MB) take 3.1 to 3.3 ms for one row
(docs/benchmarks/ring.md, "What decode costs"): 16.5 GB/s once the overheads are taken off. 29 of
the 37 ms of a span of 128 rows are matrix products (same page): 6.44 GFLOP / 29 ms = 222 GFLOP/s;
the other 8 ms are 20 ns for each of 128 x 4 x 768 numbers. Attention of 8 or 16 rows reads KV at
4.6 to 5.8 GB/s, as `molink bench --profile` found between contexts of 32 and 1,024."""

GPUS: Mapping[str, Gpu] = {
    # Data centre: data sheets. The A100 is the 40 GB card that Helix profiled.
    "a100": Gpu("a100", 40, 1555, 312),
    "a100-80gb": Gpu("a100-80gb", 80, 2039, 312),
    "h100": Gpu("h100", 80, 3352, 989),
    "l4": Gpu("l4", 24, 300, 121, compute_efficiency=0.40),
    "t4": Gpu("t4", 16, 320, 65, compute_efficiency=0.40),
    "v100": Gpu("v100", 16, 900, 125),
    "cpu": CPU,
}
"""Devices that are no GeForce cards, by the name that a user types. T4 and L4 have 70 W and cannot
keep their clocks: 0.40 is what Helix's profiles show for both."""


def known_gpus() -> tuple[str, ...]:
    """Names that `gpu` takes; of GeForce cards other ways to write them, too."""
    return (*card_tables(), *GPUS)


def gpu(name: str) -> Gpu:
    """The device of this name; case, spaces and dashes do not matter, and a GeForce card's number
    is enough.

    Raises UserError, with the nearest names, when it is unknown.
    """
    if (card := known_card(name)) is not None:
        figures = {key: value for key, value in card_tables()[card].items() if key != "source"}
        return Gpu(card, **figures)
    asked = _plain(name)
    for known, device in GPUS.items():
        if asked in (_plain(known), _plain(f"nvidia {known}")):
            return device
    numbers = (known.removeprefix("rtx") for known in known_gpus())
    near = near_names(name.lower().removeprefix("rtx"), numbers)
    others = f"nearest is {' or '.join(near)}" if near else f"write {EXAMPLES}"
    raise UserError(f"no GPU {printable_line(name)[:40]!r} is known: {others}.")


def measured_device(
    kind: str, formats: Mapping[str, FormatTimes], element_bytes: int
) -> Gpu | None:
    """A device of which no more is known than its kind ("cpu" or "cuda") and its times of weights
    in several formats, plain numbers of `element_bytes` among them; None: it has none of those.

    Its memory is as fast as it reads plain weights, its arithmetic as it multiplies with them.
    """
    plain = formats.get("plain")
    if plain is None or plain.read_s <= 0 or plain.row_s <= 0:
        return None
    is_cpu = kind == "cpu"
    return replace(
        CPU if is_cpu else Gpu(kind, 0, 0, 0),
        bandwidth_gb_per_s=element_bytes / plain.read_s,
        tflops=2 * BILLION / plain.row_s / 1e12,
        memory_efficiency=1.0,
        compute_efficiency=1.0,
        kv_efficiency=CPU.kv_efficiency if is_cpu else 1.0,
        formats=formats,
    )


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
