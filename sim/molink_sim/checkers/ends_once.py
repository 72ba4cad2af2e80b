"""Every request ends once: with its last token, with an error, or turned away at arrival."""

from molink_scheduler.events import SampledToken
from molink_sim.checkers.checker import Checker, RingLife
from molink_sim.ring.coordinator import request_number
from molink_sim.scenario import Scenario
from molink_sim.simulate import World


class EndsOnce(Checker):
    """Count of the endings of each request."""

    name = "every request ends once"

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._last_tokens: dict[int, int] = {}

    def sampled(self, life: RingLife, tokens: tuple[SampledToken, ...]) -> None:
        """A last token is an ending."""
        for token in tokens:
            if token.finished:
                number = request_number(token.request_id)
                self._last_tokens[number] = self._last_tokens.get(number, 0) + 1

    def ended(self, world: World) -> None:
        """An error and a refusal are endings too."""
        for request in world.coordinator.requests:
            last_tokens = self._last_tokens.get(request.number, 0)
            endings = last_tokens + request.failed + request.refused
            if endings != 1:
                self.mistake(f"request {request.number} ended {endings} times")
            elif request.finished != (last_tokens == 1):
                self.mistake(f"request {request.number} is taken for finished without a last token")
