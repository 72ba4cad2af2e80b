"""How long a stage computes: model shapes, devices, a roofline with named parts, profiles."""

from molink.checkpoint.model_config import known_models, model_shape
from molink.checkpoint.model_shape import ModelShape
from molink.hardware.gpu import Gpu, gpu, known_gpus
from molink.hardware.roofline import RooflineCost, StepParts, stage_cost
from molink_sim.hardware.memory import kv_tokens

__all__ = [
    "Gpu",
    "ModelShape",
    "RooflineCost",
    "StepParts",
    "gpu",
    "known_gpus",
    "known_models",
    "kv_tokens",
    "model_shape",
    "stage_cost",
]
