"""How a stage is paired with the stage of another ring that has the same layers."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import MinLen


@dataclass(frozen=True, slots=True)
class Pairing:
    """One end of the hand-over of KV between two stages of one PC."""

    path: Annotated[str, MinLen(1)]
    """Socket in a folder that nobody else on the PC may enter. The stage that takes listens."""
    sends: bool
    """Whether it hands over what it computes; else it takes what the other one does."""
