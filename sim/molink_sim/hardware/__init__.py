"""How long a stage computes: model shapes, devices, a roofline with named parts, profiles."""

from molink.checkpoint.model_config import known_models, model_shape
from molink.checkpoint.model_shape import ModelShape
from molink.hardware.gpu import Gpu, gpu, known_gpus
from molink.hardware.roofline import RooflineCost, StepParts, stage_cost
from molink_sim.hardware.memory import kv_tokens
from molink_sim.hardware.read_profile import read_profile

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
    "read_profile",
    "stage_cost",
]
