"""What does a stage of four-bit weights take in memory, and what while it loads?

    python -m tools.experiments.quantized.stage_memory --out DIR

Writes a random llama (2,048 wide) twice, in bf16 and rounded to four bits in groups of 128, as
compressed-tensors stores them; loads the middle layers of each in a process of its own, with the
same KV, and asks the system what the process held at most and what it holds in the end: its own
pages, without those of files, which the system takes back when it needs them. A stage without any
layer's weights to speak of (one layer, 64 wide) is today's fixed part.
"""

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import click
import psutil
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from molink.engine.loading import load_stage
from molink.stage_protocol.messages import StageWork
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main", "write_plain"]

GROUP = 128
KV_TOKENS = 2048
MB = 2**20
SAMPLED_EACH_S = 0.002
"""The peak lasts at least as long as one matrix takes to pack: some milliseconds."""

SCHEME = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": GROUP,
            },
        }
    },
}


@experiment
@click.option(
    "--layers", default=12, show_default=True, help="Of the model; a stage owns all but two."
)
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16")
def main(out: Path, layers: int, dtype: str) -> None:
    """Print the memory of a stage in bf16 and in four bits."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_plain(folder / "nothing", 3, 64)
        write_plain(folder / "bf16", layers, 2048)
        _write_rounded(folder / "bf16", folder / "int4")
        held = {
            name: _loaded(folder / name, range(1, count - 1), dtype)
            for name, count in (("nothing", 3), ("bf16", layers), ("int4", layers))
        }
    fixed = held["nothing"]["resident"]
    plain = held["bf16"]["weights"]
    for row in (held["bf16"], held["int4"]):
        row["of bf16 weights"] = (row["resident"] - fixed) / plain
        row["peak of weights"] = (row["peak"] - fixed) / (row["resident"] - fixed)
    write_report(out, "stage_memory", {"dtype": dtype, "layers": layers, "held": held})
    head = [
        "stage",
        "weights MB",
        "resident MB",
        "peak MB",
        "resident less fixed, of bf16 weights",
        "peak of it",
    ]
    lines = [[name, *_cells(row)] for name, row in held.items()]
    show(markdown_table(head, lines))


def _cells(row: dict[str, Any]) -> list[str]:
    sizes = [f"{row[key] / MB:.0f}" for key in ("weights", "resident", "peak")]
    shares = [row.get("of bf16 weights"), row.get("peak of weights")]
    return sizes + ["" if share is None else f"{share:.3f}" for share in shares]


# -- checkpoints ----------------------------------------------------------------------------------


def write_plain(directory: Path, layers: int, width: int) -> None:
    """A random llama in bf16, in files of at most half a gigabyte."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        num_key_value_heads=max(1, width // 256),
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to(torch.bfloat16).to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=width**-0.5)
    model.save_pretrained(directory, max_shard_size="500MB")


def _write_rounded(source: Path, directory: Path) -> None:
    """The same with the linears of all layers in four bits, file by file."""
    directory.mkdir()
    weight_map: dict[str, str] = {}
    for path in sorted(source.glob("*.safetensors")):
        tensors: dict[str, torch.Tensor] = {}
        for name, tensor in load_file(path).items():
            if ".layers." in name and tensor.dim() == 2:
                tensors |= _rounded(name.removesuffix(".weight"), tensor)
            else:
                tensors[name] = tensor
        save_file(tensors, directory / path.name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, path.name)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    config = json.loads((source / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": SCHEME}))


def _rounded(stem: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    grouped = weight.float().view(len(weight), -1, GROUP)
    scale = (grouped.abs().amax(-1) / 7.5).to(torch.bfloat16)
    codes = (grouped / scale.float()[..., None] + 8).round().clamp(0, 15).to(torch.uint8)
    codes = codes.view(weight.shape)
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).contiguous().view(torch.int32)
    return {
        f"{stem}.weight_packed": packed,
        f"{stem}.weight_scale": scale,
        f"{stem}.weight_shape": torch.tensor(weight.shape),
    }


# -- a stage in a process of its own --------------------------------------------------------------


def _loaded(directory: Path, layers: range, dtype: str) -> dict[str, Any]:
    command = [sys.executable, "-m", __spec__.name, "load"]
    command += [str(directory), str(layers.start), str(layers.stop), dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _load(directory: str, start: int, stop: int, dtype: str) -> None:
    """Load a stage, and print what this process held."""
    torch.set_num_threads(1)
    process, peak, ended = psutil.Process(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLED_EACH_S):
            peak[0] = max(peak[0], _own_bytes(process))

    watcher = threading.Thread(target=watch)
    watcher.start()
    work = StageWork((start, stop), device="cpu", dtype=dtype, kv_tokens=KV_TOKENS)
    stage = load_stage(directory, work)
    ended.set()
    watcher.join()
    held = {"weights": stage.weights_bytes, "resident": _own_bytes(process), "peak": peak[0]}
    print(json.dumps(held))


def _own_bytes(process: psutil.Process) -> int:
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


if __name__ == "__main__":
    if sys.argv[1:2] == ["load"]:
        _load(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        main()
