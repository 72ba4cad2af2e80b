"""What a checkpoint directory holds, read the plain way."""

import json
from pathlib import Path

from molink.checkpoint.checkpoint import INDEX
from molink.checkpoint.safetensors_header import read_header


def tensors_in(directory: Path) -> dict[str, bytes]:
    """Every tensor that the directory's index names, by the table of the file it lies in."""
    index = directory / INDEX
    files = {path.name for path in directory.glob("*.safetensors")}
    if index.exists():
        files = set(json.loads(index.read_text())["weight_map"].values())
    found = {}
    for name in files:
        data = (directory / name).read_bytes()
        header = read_header(directory / name)
        assert max(tensor.stop for tensor in header.tensors) == len(data)
        found |= {tensor.name: data[tensor.start : tensor.stop] for tensor in header.tensors}
    return found


def needed_of(model: Path, layers: range, total: int, *, tied: bool) -> dict[str, bytes]:
    """What a stage of these layers needs of a made-up llama, told independently of the plan."""
    wanted = {f"model.layers.{layer}" for layer in layers}
    if layers.start == 0:
        wanted.add("model.embed_tokens")
    if layers.stop == total:
        wanted |= {"model.norm", "model.embed_tokens" if tied else "lm_head"}
    return {
        name: data
        for name, data in tensors_in(model).items()
        if any(name.startswith(f"{prefix}.") for prefix in wanted)
    }
