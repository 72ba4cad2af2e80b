"""Quality that few bits cost, as far as it was measured.

Each figure is a line of docs/benchmarks/quantized.md (a test compares them): the divergence of the
rounded demo model from the plain one, how often the likeliest word stays the same, perplexities.
What was not measured gets a sentence that says so, never the figure of something near it.
"""

from dataclasses import dataclass

from molink.checkpoint.quantized.declared import DeclaredQuantization

SOURCE = "docs/benchmarks/quantized.md"


@dataclass(frozen=True, slots=True)
class MeasuredQuality:
    """Figures of the demo model in one format."""

    row: str
    """First cell of the line in the page."""
    what: str
    kl: float
    """Divergence from the plain model."""
    same_percent: float
    """Percentage of positions at which the likeliest word is the plain model's."""
    perplexity: float
    plain_perplexity: float

    @property
    def sentence(self) -> str:
        """All of it, and on which model."""
        return (
            f"{self.what} was measured on the demo model only: KL {self.kl:.2g}, the likeliest "
            f"word the same in {self.same_percent:g} %, perplexity {self.perplexity:g} after "
            f"{self.plain_perplexity:g} ({SOURCE})."
        )


ROUNDED = {
    (8, None): MeasuredQuality("int8 per output", "Rounding to int8", 2e-6, 99.8, 1.6171, 1.6171),
    (4, 32): MeasuredQuality(
        "int4, groups of 32", "Rounding to int4 in groups of 32", 2.27e-4, 98.0, 1.6172, 1.6171
    ),
    (4, 128): MeasuredQuality(
        "int4, groups of 128", "Rounding to int4 in groups of 128", 4.07e-4, 96.9, 1.6176, 1.6171
    ),
}
"""Integers by plain rounding, by their bits and groups; better methods were not measured."""

FP8 = MeasuredQuality("FP8 per output", "Rounding to FP8 per output", 2.2e-5, 99.4, 1.6169, 1.6171)
MXFP4 = MeasuredQuality("MXFP4", "Rounding to MXFP4", 5.66e-4, 96.1, 1.6187, 1.6171)

IMPORTED = {
    8: MeasuredQuality("int8", "`molink import --weights int8`", 7.8e-6, 99.3, 1.6237, 1.6237),
    4: MeasuredQuality(
        "int4, groups of 128 (the default)",
        *("`molink import --weights int4`", 3.37e-4, 97.7, 1.6236, 1.6237),
    ),
}
"""Figures of what this project rounds, by bits."""

KV_INT8 = MeasuredQuality("int8", "KV in int8", 1.8e-6, 99.93, 1.65846, 1.65847)


def quality_lines(
    declared: DeclaredQuantization, *, is_import: bool = False, is_kv_int8: bool = False
) -> list[str]:
    """Sentences about what weights in few bits cost, and KV in eight; none for what is plain."""
    lines = []
    if declared.method is not None:
        found = IMPORTED.get(declared.bits or 0) if is_import else _measured(declared)
        unknown = f"What weights{declared.words} cost in quality was not measured ({SOURCE})."
        lines.append(unknown if found is None else found.sentence)
    return [*lines, KV_INT8.sentence] if is_kv_int8 else lines


def _measured(declared: DeclaredQuantization) -> MeasuredQuality | None:
    if declared.method == "mxfp4":
        return MXFP4
    if declared.is_float:
        return FP8 if declared.group is None else None
    return ROUNDED.get((declared.bits or 0, declared.group))
