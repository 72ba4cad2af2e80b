"""A ring whose stages send by an order that the product does not have.

    MOLINK_EXPERIMENT_POLICY=fifo python -m tools.experiments.harness.policy_ring serve demo

It is `molink serve` with other queues on the links between its stages, those that the simulator has
by the same name. The same module is the stage's program.
"""

import os
import sys
from functools import partial

from molink.node import stage_handle
from molink_sim.network.policies import make_queue

__all__ = ["MODULE", "POLICY_VARIABLE", "main"]

MODULE = "tools.experiments.harness.policy_ring"

POLICY_VARIABLE = "MOLINK_EXPERIMENT_POLICY"
"""Environment variable with the name of the order."""


def main() -> None:
    """Be the command with arguments of one, or a stage."""
    if sys.argv[1:2] == ["serve"]:
        from molink.cli.main import main as command

        stage_handle.STAGE_MODULE = MODULE
        command()
        return
    from molink.stage.stage_process import main as stage

    send_by(os.environ[POLICY_VARIABLE])
    stage()


def send_by(policy: str) -> None:
    """Have the links of this process take a queue of that name. Raises ValueError for another."""
    from molink.stage import links

    make_queue(policy)
    setattr(links, "PriorityQueues", partial(make_queue, policy))  # noqa: B010 - for mypy


if __name__ == "__main__":
    main()
