"""How fast does each wire codec pack and unpack, and how small does it get things?

    OMP_NUM_THREADS=1 python -m tools.experiments.links.codec_speed --json FILE

The rows are made up: every channel has its own scale and two of them are massive, as in the
residual stream of a large model. Medians of many repeats; a rate counts raw bytes.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from molink.wire.codecs import CODECS, decode, encode
from molink.wire.messages import TensorHeader

__all__ = ["CodecFigures", "main", "measure"]

ROWS = (1, 8, 128, 1000)
WIDTHS = (768, 4096)
SEED = 20
MASSIVE_CHANNELS, MASSIVE = (3, 11), 200
REPEATS_MIN, MEASURE_S = 9, 0.3
"""At least so many repeats, and more until so much time has gone by."""


@dataclass(frozen=True, slots=True)
class CodecFigures:
    """One codec on one shape."""

    codec: str
    rows: int
    width: int
    ratio: float
    """Packed over raw bytes."""
    encode_us: float
    decode_us: float
    encode_mb_per_s: float
    decode_mb_per_s: float


@click.command()
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="bfloat16",
    show_default=True,
    help="Element type of the rows.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write this file.")
def main(dtype: str, json_file: Path | None) -> None:
    """Measure every codec of the wire on decode-sized and prefill-sized activations."""
    figures = []
    for width in WIDTHS:
        for rows in ROWS:
            header = TensorHeader(dtype, rows, width)
            figures += [measure(codec, header, _rows(header)) for codec in CODECS]
    _print(dtype, figures)
    if json_file is not None:
        report = {"dtype": dtype, "figures": [asdict(one) for one in figures]}
        json_file.write_text(json.dumps(report, indent=2) + "\n")


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


def _print(dtype: str, figures: list[CodecFigures]) -> None:
    table = Table(title=f"wire codecs on {dtype} rows")
    for name in (
        "width",
        "rows",
        "codec",
        "ratio",
        "pack us",
        "unpack us",
        "pack MB/s",
        "unpack MB/s",
    ):
        table.add_column(name, justify="left" if name == "codec" else "right")
    for one in figures:
        rates = [f"{rate:,.0f}" for rate in (one.encode_mb_per_s, one.decode_mb_per_s)]
        times = [f"{time_us:,.0f}" for time_us in (one.encode_us, one.decode_us)]
        shape = (str(one.width), str(one.rows), one.codec, f"{one.ratio:.3f}")
        table.add_row(*shape, *times, *(rates if one.codec != "raw" else ("-", "-")))
    Console().print(table)


if __name__ == "__main__":
    main()
