"""A prefill step that decode may interrupt: how far it is, and when its layers end."""

import math
from dataclasses import dataclass

from molink_sim.ring.messages import Activations

__all__ = ["PrefillStep"]


@dataclass(slots=True)
class PrefillStep:
    """A prefill step under way, or standing still for decode; in its device's compute time."""

    work: Activations
    step_s: float
    resumed_at: float
    done_s: float = 0.0
    """Of the step, before it was resumed."""
    resumed_real: float = math.inf
    """The same moment on the clock."""
    real_s: float = 0.0
    """How long it has been computed by the clock."""
    look_at: float = -math.inf
    """The end of a part at which the stage looks for decode, when that is planned."""
    is_counted: bool = False
    """Whether a part of it was: a step that decode interrupts is still one step."""

    @property
    def ends_at(self) -> float:
        """Unless decode interrupts it; in compute time."""
        return self.resumed_at + self.step_s - self.done_s

    def part_ends_at(self, now: float, part_s: float) -> float:
        """The end of the layer that is computed now."""
        parts = math.ceil((self.done_s + now - self.resumed_at) / part_s)
        return max(now, self.resumed_at + parts * part_s - self.done_s)
