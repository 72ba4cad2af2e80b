"""Tensors of the library's class that a file has among its settings."""

from functools import partial

import numpy as np

from molink.importing.checkpoint_folder import NewTensors, one_tensor
from molink.importing.gguf_architectures import Architecture
from molink.importing.gguf_metadata import GgufModel

__all__ = ["generated"]

XIELU = {"alpha_n": (1,), "alpha_p": (1,), "beta": (), "eps": ()}
"""Parameters of Apertus' activation, and their shapes in the library."""


def generated(model: GgufModel, architecture: Architecture) -> list[NewTensors]:
    """What is made of settings: one number of each kind for each layer."""
    new = []
    for key, shape in XIELU.items() if architecture.model_type == "apertus" else ():
        values = model.header.array(f"xielu.{key}") or []
        for layer, value in enumerate(values[: model.layers]):
            raw = np.array(value, np.float32).tobytes()
            name = f"{architecture.layers}.{layer}.mlp.act_fn.{key}"
            new.append(one_tensor(name, "F32", shape, len(raw), partial(iter, [raw])))
    return new
