"""Checkpoints with a layer of their own that drafts, for who reads names and sizes alone."""

import json

from tests.engine.tiny_models import save_tiny


def with_nextn(folder, lost=()):
    """A tiny GLM with its last layer once more, as the layer that drafts."""
    save_tiny("glm4_moe", folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    begin, own = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    names = [own + name.removeprefix(begin) for name in index["weight_map"] if begin in name]
    names += [f"{own}{part}.weight" for part in ("enorm", "hnorm", "eh_proj", "shared_head.norm")]
    content, at = {}, 0
    for name in names:
        if not name.endswith(tuple(lost)):
            content[name] = {"dtype": "F32", "shape": [2], "data_offsets": [at, at + 8]}
            at += 8
    header = json.dumps(content).encode()
    file = len(header).to_bytes(8, "little") + header + bytes(at)
    (folder / "drafts.safetensors").write_bytes(file)
    index["weight_map"] |= dict.fromkeys(content, "drafts.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return str(folder)
