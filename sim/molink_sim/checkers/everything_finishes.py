"""When the faults have stopped, everything finishes, and the world is at rest."""

from molink_sim.checkers.checker import Checker
from molink_sim.outcome import RequestOutcome
from molink_sim.scenario import NodeLoss
from molink_sim.simulate import World

__all__ = ["EverythingFinishes"]


class EverythingFinishes(Checker):
    """Rest at the end: no request waits, none failed without a lost node."""

    name = "after faults stop everything finishes"

    def ended(self, world: World) -> None:
        """No request waits or failed without a reason, and nothing is left on the rings."""
        for request in world.coordinator.requests:
            if not (request.finished or request.failed or request.refused):
                self.mistake(
                    f"request {request.number} is still waiting with "
                    f"{len(request.token_times_s)} of {request.output_tokens} tokens"
                )
            elif request.failed and not self._met_a_loss(request):
                self.mistake(f"request {request.number} failed although no node was gone")
        if world.coordinator.is_done():
            self._check_rest(world)
        else:
            self.mistake("the run did not come to its end")

    def _met_a_loss(self, request: RequestOutcome) -> bool:
        """Whether a node of its ring was gone after it had come."""
        return any(
            isinstance(fault, NodeLoss)
            and fault.ring == request.ring
            and fault.until_s >= request.arrived_s
            for fault in self.scenario.faults
        )

    def _check_rest(self, world: World) -> None:
        for number, ring in enumerate(world.rings):
            for index, stage in enumerate(ring.stages):
                if not stage.is_idle:
                    self.mistake(f"stage {index} of ring {number} is not at rest")
            tail = ring.stages[-1].tail
            if tail.watched_count:
                self.mistake(f"the tail of ring {number} still watches {tail.watched_count}")
