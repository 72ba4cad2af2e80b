"""A node that computes slowly for a while."""

from collections.abc import Sequence
from dataclasses import dataclass

from molink_scheduler.batch import BatchClass
from molink_sim.clock import Clock
from molink_sim.scenario import SlowNode, StepCost

__all__ = ["SlowCost"]


@dataclass(frozen=True, slots=True)
class SlowCost:
    """A stage's cost, times the factors of the faults during which a step begins."""

    cost: StepCost
    clock: Clock
    faults: Sequence[SlowNode]

    def step_s(self, batch_class: BatchClass, rows: int, kv_tokens: int, sequences: int) -> float:
        """As `StepCost` says."""
        step_s = self.cost.step_s(batch_class, rows, kv_tokens, sequences)
        for fault in self.faults:
            if fault.at_s <= self.clock.now < fault.until_s:
                step_s *= fault.factor
        return step_s
