"""How long to go on while the coordinator cannot be reached, or has no time for us."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from molink.errors import WeightsError
from molink_agent.weights.block_client import ComeBack, Unreachable
from molink_agent.weights.source import WeightsLimits

__all__ = ["Patience"]

Result = TypeVar("Result")


class Patience:
    """How long to go on. Every good block restores it."""

    def __init__(self, limits: WeightsLimits) -> None:
        self._limits = limits
        self.restore()

    def restore(self) -> None:
        """Something good has come."""
        self._failures = 0
        self._busy_s = 0.0

    async def __call__(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """The result of a call that is repeated while it fails in a way that passes. Raises
        WeightsError when patience is at its end."""
        while True:
            try:
                return await call()
            except Unreachable as error:
                pause_s = self._after_failure(error)
            except ComeBack as error:
                pause_s = self._after_busy(error)
            await asyncio.sleep(pause_s)

    def _after_failure(self, error: Unreachable) -> float:
        self._failures += 1
        if self._failures > self._limits.failures_max:
            raise WeightsError(
                f"the coordinator does not give weights, {self._failures} tries failed in a row "
                f"({error}); what has come is kept: try again when it can be reached"
            ) from error
        pause_s = self._limits.pause_s * 2.0 ** (self._failures - 1)
        return min(pause_s, self._limits.pause_s_max)

    def _after_busy(self, error: ComeBack) -> float:
        self._busy_s += error.after_s
        if self._busy_s > self._limits.busy_s_max:
            raise WeightsError(
                f"the coordinator has been too busy for {self._limits.busy_s_max:.0f} s ({error}): "
                "try again later"
            ) from error
        return error.after_s
