"""Models that ship with the project."""

from pathlib import Path

__all__ = ["DEMO_MODEL_DIR"]

DEMO_MODEL_DIR = Path(__file__).parent / "demo"
