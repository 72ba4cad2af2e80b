"""Liveness: once the faults have stopped, everything finishes, and the world is at rest."""

from molink_sim.checkers.checker import Checker
from molink_sim.outcome import RequestOutcome
from molink_sim.ring.coordinator import LOSSES_MAX
from molink_sim.scenario import FaultSpec, HostSuspended, NodeLoss
from molink_sim.simulate import World


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
            elif request.failed and not self._may_fail(request):
                self.mistake(f"request {request.number} failed although no node was gone")
        if world.coordinator.is_done():
            self._check_rest(world)
        else:
            self.mistake("the run did not come to its end")

    def _may_fail(self, request: RequestOutcome) -> bool:
        """Whether a request may fail: on a ring that goes on, one that met too many losses or that
        nobody took."""
        if self.scenario.system.survivors_stay and request.losses <= LOSSES_MAX:
            return not request.token_times_s and self._met_a_loss(request)
        return self._met_a_loss(request)

    def _met_a_loss(self, request: RequestOutcome) -> bool:
        """Whether a node of its ring was gone after it had come."""
        return any(
            _gone_until(fault) >= request.arrived_s
            for fault in self.scenario.faults
            if fault.ring == request.ring
        )

    def _check_rest(self, world: World) -> None:
        for number, ring in enumerate(world.rings):
            if any(stage.is_lost for stage in ring.stages):
                continue  # It has ended, and there is nothing for the next one to do.
            for index, stage in enumerate(ring.stages):
                if not stage.is_idle:
                    self.mistake(f"stage {index} of ring {number} is not at rest")
                logs = [stage.log, *(taken.extension.log for taken in stage.taken)]
                if any(log is not None and log.bytes_held for log in logs):
                    self.mistake(f"stage {index} of ring {number} logs rows of nobody")
            tail = ring.stages[-1].tail
            if tail.watched_count:
                self.mistake(f"the tail of ring {number} still watches {tail.watched_count}")


def _gone_until(fault: FaultSpec) -> float:
    """Time until which a node is gone, before the run when none is."""
    match fault:
        case NodeLoss():
            return fault.until_s
        case HostSuspended():
            return max(fault.until_s, fault.at_s + fault.silent_s + fault.load_s)
    return -1.0
