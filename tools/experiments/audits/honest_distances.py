"""How far are honest rings apart? What the tolerances of audits are taken from.

    python -m tools.experiments.audits.honest_distances --out DIR

A ring of each number format, codec and format of KV computes prompts and is compared with a ring of
one stage in fp32, whose weights are the same numbers: so the distance is what the format itself
costs, whichever device sums in whichever order. Beside it, how far a ring is from the truth in
which one layer is negated, or leaves out what it adds to its rows.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import click

import molink.models
from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.description import describe
from molink.checkpoint.kv_format import KvDtype
from molink.engine.step.stage import StageExecutor
from molink_scheduler.audit import AuditedRing, distance
from tools.experiments.audits.in_process import InProcessRing, flip, leave_out
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["DEMO", "main", "texts_of"]

SEED = 0

SPAN_TOKENS = 48
"""Of the rings that are compared; the one in fp32 has longer ones."""

DEMO = Path(molink.models.__file__).parent / "demo"

Pairs = list[tuple[AuditedRing, AuditedRing]]
Figures = dict[str, float]
Lie = Callable[[StageExecutor, int], None]


@dataclass(frozen=True)
class Kind:
    """How a ring computes."""

    dtype: str
    codec: str = "raw"
    kv_dtype: KvDtype = "auto"


KINDS = (
    Kind("float32"),
    Kind("float32", "int8"),
    Kind("float32", "fp8"),
    Kind("float32", "raw", "int8"),
    Kind("float16"),
    Kind("float16", "int8"),
    Kind("bfloat16"),
    Kind("bfloat16", "int8"),
    Kind("bfloat16", "fp8"),
    Kind("bfloat16", "int8", "int8"),
)


@dataclass
class Truth:
    """A model in one stage of fp32, and what it computes of some prompts."""

    directory: Path
    stages: int
    """Of the rings that are compared with it."""
    texts: list[list[int]]
    exact: list[AuditedRing]

    def beside(self, ring: InProcessRing) -> Figures:
        """How far a ring is from it."""
        pairs = zip(self.exact, self.texts, strict=True)
        return _figures([(exact, ring.audit(text, SPAN_TOKENS)) for exact, text in pairs])

    def lied_to(self, layer: int, lie: Lie) -> Figures:
        """How far a ring is from it of which one layer lies."""
        ring = InProcessRing.load(self.directory, _cuts(self.directory, self.stages), 1)
        lie(next(one for one in ring.stages if layer in one.layers), layer)
        return self.beside(InProcessRing(1, ring.stages, "float32"))


@experiment
@click.option("--model", default=str(DEMO), help="Its directory; the demo model without it.")
@click.option("--prompts", default=20, show_default=True)
@click.option("--stages", default=4, show_default=True, help="Of the rings that are compared.")
def main(out: Path, model: str, prompts: int, stages: int) -> None:
    """Print the worst and the median distance of each kind of ring from the truth."""
    directory = Path(model)
    whole = InProcessRing.load(directory, _cuts(directory, 1))
    texts = texts_of(whole.stages[0].description.vocabulary_size, prompts)
    truth = Truth(directory, stages, texts, [whole.audit(text) for text in texts])
    results: dict[str, Figures] = {}
    for kind in KINDS:
        ring = InProcessRing.load(directory, _cuts(directory, stages), 1, **asdict(kind))
        results[f"{kind.dtype}, {kind.codec}, KV {kind.kv_dtype}"] = truth.beside(ring)
    for name, lie in (("negated", flip), ("left out", leave_out)):
        layers = [truth.lied_to(layer, lie) for layer in whole.stages[0].layers]
        least = min(layers, key=lambda one: one["rows_median"])
        results[f"float32, the layer {name} that shows least"] = least
    write_report(out, "honest_distances", {"model": directory.name, "results": results})
    head = ["ring", "rows, median", "worst", "log-probabilities, median", "worst"]
    rows = [[name, *(f"{one:.2g}" for one in row.values())] for name, row in results.items()]
    show(markdown_table(head, rows))


def _cuts(directory: Path, stages: int) -> list[int]:
    layers = describe(open_checkpoint(str(directory))).layers
    return [layers * place // stages for place in range(stages + 1)]


def texts_of(vocabulary: int, count: int, seed: int = SEED) -> list[list[int]]:
    """Prompts of any tokens."""
    random = Random(seed)
    return [
        [random.randrange(vocabulary) for _ in range(random.randrange(8, 200))]
        for _ in range(count)
    ]


def _figures(pairs: Pairs) -> Figures:
    """The worst place of each prompt, and the mean of its tokens' log-probabilities: the median of
    all prompts, and the worst."""
    rows = sorted(max(_distances(*pair)) for pair in pairs)
    words = sorted(_mean_difference(*pair) for pair in pairs)
    half = len(pairs) // 2
    names = ("rows_median", "rows_worst", "logprobs_median", "logprobs_worst")
    return dict(zip(names, (rows[half], rows[-1], words[half], words[-1]), strict=True))


def _distances(one: AuditedRing, other: AuditedRing) -> list[float]:
    return [
        distance(one.stages[0].at(place), stage.at(place), one.tokens)
        for stage in other.stages
        for place in range(stage.layers[0], stage.layers[1] + 1)
    ]


def _mean_difference(one: AuditedRing, other: AuditedRing) -> float:
    pairs = zip(one.logprobs, other.logprobs, strict=True)
    return sum(abs(a - b) for a, b in pairs) / len(one.logprobs)


if __name__ == "__main__":
    main()
