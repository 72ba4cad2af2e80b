"""A ring of which two neighbouring stages are on one PC, all others in homes of their own.

    MOLINK_EXPERIMENT_NEAR=1 python -m tools.experiments.harness.near_ring serve demo --link 100:20

It is `molink serve` without an emulated link between that stage and the next. Raises KeyError
without the variable.
"""

import os
from dataclasses import replace

from molink.coordinator.local.local_endpoint import LocalEndpoint
from molink.coordinator.upkeep.ring_building import RingRoutes

__all__ = ["MODULE", "NEAR_VARIABLE", "main"]

MODULE = "tools.experiments.harness.near_ring"

NEAR_VARIABLE = "MOLINK_EXPERIMENT_NEAR"
"""Environment variable with the place of the stage whose link to the next one is not emulated."""


def main() -> None:
    """Be the command with arguments of one."""
    from molink.cli.main import main as command

    _join(int(os.environ[NEAR_VARIABLE]))
    command()


def _join(place: int) -> None:
    """Have no link emulated between the stage at a place and the next."""
    reroute = LocalEndpoint.reroute

    async def reroute_others(endpoint: LocalEndpoint, routes: RingRoutes) -> RingRoutes:
        through = await reroute(endpoint, routes)
        next_of = list(through.next_of)
        next_of[place] = routes.next_of[place]
        return replace(through, next_of=tuple(next_of))

    setattr(LocalEndpoint, "reroute", reroute_others)  # noqa: B010 - for mypy


if __name__ == "__main__":
    main()
