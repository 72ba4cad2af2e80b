"""Models that ship with the project."""

from pathlib import Path

__all__ = ["DEMO_DRAFTER_DIR", "DEMO_MODEL_DIR"]

DEMO_MODEL_DIR = Path(__file__).parent / "demo"

DEMO_DRAFTER_DIR = Path(__file__).parent / "demo_drafter"
"""Small model that guesses what the demo model says."""
