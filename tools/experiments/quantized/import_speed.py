"""What does `molink import` take in memory and time, of a model larger than what it may hold?

    python -m tools.experiments.quantized.import_speed --out DIR

Writes a random llama of about a gigabyte in bf16 and one as a GGUF file (blocks of Q4_K, drawn, as
large), and imports each by the command itself, in a process of its own: bf16 to four and to eight
bits, the file as it is. Asked of the system while it runs is what the process holds of its own
pages, without those of files, which the system takes back when it needs them; and in the end its
processor time. `molink import --help` is what Python and the libraries take without any work.
"""

import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import gguf
import numpy as np
import psutil

from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report
from tools.experiments.quantized.stage_memory import write_plain

__all__ = ["main"]

MB = 2**20
WIDTH = 2048
FEED_FORWARD = WIDTH * 11 // 4
KV_WIDTH = 512
SAMPLED_EACH_S = 0.01

MATRICES = {
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (KV_WIDTH, WIDTH),
    "attn_v": (KV_WIDTH, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_gate": (FEED_FORWARD, WIDTH),
    "ffn_up": (FEED_FORWARD, WIDTH),
    "ffn_down": (WIDTH, FEED_FORWARD),
}
"""Of a layer: outputs and inputs."""

BLOCK_NUMBERS, BLOCK_BYTES = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q4_K]


@dataclass(frozen=True, slots=True)
class Took:
    """One run of a command."""

    read_bytes: int
    written_bytes: int
    peak_bytes: int
    cpu_s: float
    wall_s: float


@experiment
@click.option("--layers", default=11, show_default=True, help="Of the model in bf16.")
@click.option("--blocks-layers", default=42, show_default=True, help="Of the GGUF file.")
def main(out: Path, layers: int, blocks_layers: int) -> None:
    """Print peak memory and time of `molink import`."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_plain(folder / "bf16", layers, WIDTH)
        write_gguf(folder / "m.gguf", blocks_layers)
        plain, blocks = str(folder / "bf16"), str(folder / "m.gguf")
        took = {
            "nothing (`--help`)": _took(folder, ["import", "--help"], ""),
            "bf16 to int4": _took(folder, ["import", plain, "--weights", "int4"], "bf16"),
            "bf16 to int8": _took(folder, ["import", plain, "--weights", "int8"], "bf16"),
            "GGUF, Q4_K": _took(folder, ["import", blocks], "m.gguf"),
        }
    write_report(out, "import_speed", {name: asdict(one) for name, one in took.items()})
    head = ["import", "read, MB", "written, MB", "peak, MB", "core, s", "MB/s of a core"]
    show(markdown_table(head, [[name, *_cells(one)] for name, one in took.items()]))


def _cells(one: Took) -> list[str]:
    sizes = [f"{count / MB:,.0f}" for count in (one.read_bytes, one.written_bytes, one.peak_bytes)]
    rate = f"{one.read_bytes / MB / one.cpu_s:,.0f}" if one.read_bytes else ""
    return [*sizes, f"{one.cpu_s:.1f}", rate]


def _took(folder: Path, words: list[str], source: str) -> Took:
    """Run a command of molink to its end. Raises RuntimeError with what it said if it fails."""
    made = folder / "made"
    more = ["--out", str(made), "--quiet"] if source else []
    command = [sys.executable, "-m", "molink.cli.main", *words, *more]
    begun, peak, cpu_s = time.monotonic(), 0, 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                memory, times = watched.memory_info(), watched.cpu_times()
            except psutil.Error:  # It has just ended.
                break
            peak = max(peak, memory.rss - memory.shared)
            cpu_s = max(cpu_s, times.user + times.system)
            time.sleep(SAMPLED_EACH_S)
        said = process.communicate()[0].decode()
    if process.returncode:
        raise RuntimeError(said)
    took = Took(_size(folder / source) if source else 0, 0, peak, cpu_s, time.monotonic() - begun)
    return _with_written(took, made)


def _with_written(took: Took, made: Path) -> Took:
    if not made.exists():
        return took
    written = _size(made)
    for file in made.iterdir():
        file.unlink()
    made.rmdir()
    return Took(took.read_bytes, written, took.peak_bytes, took.cpu_s, took.wall_s)


def _size(place: Path) -> int:
    files = place.iterdir() if place.is_dir() else [place]
    return sum(file.stat().st_size for file in files)


# -- a GGUF file ----------------------------------------------------------------------------------


def write_gguf(path: Path, layers: int) -> None:
    """A llama whose blocks are drawn; scales among them too, which import does not look at."""
    writer, random = gguf.GGUFWriter(path, "llama", use_temp_file=True), np.random.default_rng(0)
    _describe(writer, layers)
    vocabulary = 1024
    _add(writer, random, "token_embd", (vocabulary, WIDTH))
    _add(writer, random, "output", (vocabulary, WIDTH))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(layers):
        for name, shape in MATRICES.items():
            _add(writer, random, f"blk.{layer}.{name}", shape)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter, layers: int) -> None:
    writer.add_block_count(layers)
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(WIDTH // 64)
    writer.add_head_count_kv(KV_WIDTH // 64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([f"w{number}" for number in range(1024)])
    writer.add_token_types([1] * 1024)
    writer.add_token_merges([])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _add(
    writer: gguf.GGUFWriter, random: np.random.Generator, name: str, shape: tuple[int, int]
) -> None:
    bytes_of_row = shape[1] // BLOCK_NUMBERS * BLOCK_BYTES
    blocks = random.integers(0, 256, (shape[0], bytes_of_row), dtype=np.uint8)
    kind = gguf.GGMLQuantizationType.Q4_K
    writer.add_tensor(f"{name}.weight", blocks, raw_dtype=kind)


if __name__ == "__main__":
    main()
