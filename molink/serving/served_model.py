"""Which model is meant, what users call it, and how much of it is served."""

from pathlib import Path

from molink.checkpoint.description import ModelDescription
from molink.errors import UserError
from molink.models import DEMO_MODEL_DIR

__all__ = ["DEMO_MODEL", "checked_model_len", "model_path", "public_name"]

DEMO_MODEL = "demo"
"""The MODEL name of the small model that ships with the project."""


def model_path(model: str) -> str:
    """A directory as every stage finds it, in whatever directory it starts; a hub id as it is."""
    if model == DEMO_MODEL:
        return str(DEMO_MODEL_DIR)
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def public_name(path: str) -> str:
    """What API users call the model: a hub id as it is, of a directory only its own name."""
    return Path(path).resolve().name if Path(path).is_dir() else path


def checked_model_len(wanted: int | None, description: ModelDescription) -> int:
    """What is served of `--max-model-len`. Raises UserError when it is over the model's own."""
    if wanted is None:
        return description.model_len_max
    if wanted > description.model_len_max:
        raise UserError(
            f"--max-model-len {wanted} is over the model's own {description.model_len_max}: "
            "use that or less."
        )
    return wanted
