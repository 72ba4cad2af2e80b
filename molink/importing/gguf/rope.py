"""Rotary embeddings from the metadata of a GGUF file, and from factors that it has as tensors."""

import numpy as np

from molink.errors import UnsupportedModelError
from molink.importing.gguf.metadata import WITH_CONFIG, GgufModel
from molink.json_object import JsonObject
from molink.printable import printable_line

LLAMA3_LENGTHS = (8192, 4096, 16384, 32768)
"""Lengths for which models with llama 3's rotary embedding were trained first."""

LLAMA3_LOW, LLAMA3_HIGH = 1.0, 4.0
"""Factors of frequencies in every published model."""

FACTOR_DIGITS = 4
"""Digits of the largest factor, which is a whole number in published models."""

FACTORS_TOLERANCE = 1e-3
"""Relative, between the factors of a file and those that settings give: both are of fp32."""

THETA = 10000.0
"""Base where a file names none."""

ORIGINAL = "original_max_position_embeddings"


def rope_parameters(model: GgufModel, size: int) -> JsonObject:
    """Settings of the rotary embedding of heads of a size, of which a part may be rotated."""
    theta = model.amount("rope.freq_base", THETA)
    rotated = model.count("rope.dimension_count", size)
    partial = {} if rotated >= size else {"partial_rotary_factor": rotated / size}
    factors = model.floats("rope_freqs.weight")
    if factors is not None:
        return partial | _llama3(model, factors, theta, rotated)
    kind = model.find("rope.scaling.type") or "none"
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta} | partial
    factor = model.amount("rope.scaling.factor")
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor} | partial
    if kind == "yarn":
        return partial | {
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": factor,
            "beta_fast": model.amount("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": model.amount("rope.scaling.yarn_beta_slow", 1.0),
            ORIGINAL: model.number("rope.scaling.original_context_length"),
        }
    raise _needs_config(model, f"scales its rotary embedding by {printable_line(str(kind))}")


def _llama3(model: GgufModel, factors: np.ndarray, theta: float, size: int) -> JsonObject:
    """The settings that give the factors by which the file divides frequencies."""
    factor = round(float(factors.max()), FACTOR_DIGITS)
    for original in LLAMA3_LENGTHS if factor > 1 and (size + 1) // 2 == len(factors) else ():
        settings = {
            "rope_type": "llama3",
            "rope_theta": theta,
            "factor": factor,
            "low_freq_factor": LLAMA3_LOW,
            "high_freq_factor": LLAMA3_HIGH,
            ORIGINAL: original,
        }
        found = _llama3_factors(theta, size, factor, original)
        if found.shape == factors.shape and np.allclose(found, factors, FACTORS_TOLERANCE):
            return settings
    raise _needs_config(model, "has factors of rotary frequencies other than llama 3's")


def _llama3_factors(theta: float, size: int, factor: float, original: int) -> np.ndarray:
    frequencies = theta ** -(np.arange(0, size, 2) / size)
    turns = original * frequencies / (2 * np.pi)
    smooth = np.clip((turns - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth))


def _needs_config(model: GgufModel, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{model.header.path} {why}, which its metadata do not say in full: {WITH_CONFIG}"
    )
