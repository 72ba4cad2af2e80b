"""How fast does each wire codec pack and unpack, and how small does it get things?

    OMP_NUM_THREADS=1 python -m tools.experiments.links.codec_speed --out DIR

The rows are made up: every channel has its own scale and two of them are massive, as in the
residual stream of a large model. Medians of many repeats; a rate counts raw bytes.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np

from molink.wire.codecs import CODECS, decode, encode
from molink.wire.elements import TensorHeader
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["CodecFigures", "main", "measure"]

ROWS = (1, 8, 128, 1000)
WIDTHS = (768, 4096)
SEED = 20
MASSIVE_CHANNELS, MASSIVE = (3, 11), 200
REPEATS_MIN, MEASURE_S = 9, 0.3
"""At least so many repeats, and more until so much time has gone by."""


@dataclass(frozen=True, slots=True)
class CodecFigures:
    """Speed and ratio of one codec on one shape."""

    codec: str
    rows: int
    width: int
    ratio: float
    """Packed over raw bytes."""
    encode_us: float
    decode_us: float
    encode_mb_per_s: float
    decode_mb_per_s: float


@experiment
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="bfloat16",
    show_default=True,
    help="Element type of the rows.",
)
def main(out: Path, dtype: str) -> None:
    """Measure every codec of the wire on decode-sized and prefill-sized activations."""
    figures = []
    for width in WIDTHS:
        for rows in ROWS:
            header = TensorHeader(dtype, rows, width)
            figures += [measure(codec, header, _rows(header)) for codec in CODECS]
    show(_table(figures))
    report = {"dtype": dtype, "figures": [asdict(measured) for measured in figures]}
    write_report(out, "codec_speed", report)


def measure(codec: str, header: TensorHeader, buffer: bytes) -> CodecFigures:
    """Medians of packing and unpacking one buffer again and again."""
    packed = encode(codec, header, buffer)
    encode_s = _median_s(lambda: encode(codec, header, buffer))
    decode_s = _median_s(lambda: decode(codec, header, packed))
    return CodecFigures(
        codec,
        header.rows,
        header.width,
        round(len(packed) / len(buffer), 4),
        round(encode_s * 1e6, 1),
        round(decode_s * 1e6, 1),
        round(len(buffer) / encode_s / 1e6, 1),
        round(len(buffer) / decode_s / 1e6, 1),
    )


def _rows(header: TensorHeader) -> bytes:
    random = np.random.default_rng(SEED)
    channels = random.uniform(1, 4, header.width)
    channels[list(MASSIVE_CHANNELS)] *= MASSIVE
    values = (random.standard_normal((header.rows, header.width)) * channels).astype(np.float32)
    if header.dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype(header.dtype).tobytes()


def _median_s(action: Callable[[], object]) -> float:
    action()
    times: list[float] = []
    while len(times) < REPEATS_MIN or sum(times) < MEASURE_S:
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _table(figures: list[CodecFigures]) -> str:
    head = (
        *("width", "rows", "codec", "ratio"),
        *("pack us", "unpack us", "pack MB/s", "unpack MB/s"),
    )
    return markdown_table(head, [_row(measured) for measured in figures])


def _row(measured: CodecFigures) -> list[str]:
    rates = (measured.encode_mb_per_s, measured.decode_mb_per_s)
    return [
        *(str(measured.width), str(measured.rows), measured.codec, f"{measured.ratio:.3f}"),
        *(f"{time_us:,.0f}" for time_us in (measured.encode_us, measured.decode_us)),
        *("-" if measured.codec == "raw" else f"{rate:,.0f}" for rate in rates),
    ]


if __name__ == "__main__":
    main()
