"""A ring whose stages run in homes of their own, each at an address there.

    MOLINK_EXPERIMENT_HOSTS=JSON python -m tools.experiments.harness.hosted_ring serve demo

It is `molink serve`, which itself has all stages on loopback: what it tells each stage of its
address is changed here, and the stage's program, this module again, goes to its home first. Links
are not encrypted. Raises KeyError without the variable.
"""

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from molink.control.messages.payloads import AssignedWork, Profile
from molink.coordinator.local import local_endpoint
from molink.coordinator.local.fixed_plan import NO_PORT, RingPlan
from molink.node import stage_handle, stage_manager
from molink.stage_protocol.messages import LoadStage
from tools.experiments.harness import policy_ring
from tools.experiments.harness.hosts import RingHosts

__all__ = ["HOSTS_VARIABLE", "MODULE", "main"]

MODULE = "tools.experiments.harness.hosted_ring"

HOSTS_VARIABLE = "MOLINK_EXPERIMENT_HOSTS"
"""Environment variable with the text of a `RingHosts`."""

STAGE_MODULE = stage_handle.STAGE_MODULE


def main() -> None:
    """Be the command with arguments of one, or become a stage in its home."""
    hosts = RingHosts.from_text(os.environ[HOSTS_VARIABLE])
    if sys.argv[1:2] == ["serve"]:
        from molink.cli.main import main as command

        _place(hosts)
        command()
        return
    index, *arguments = sys.argv[1:]
    module = policy_ring.MODULE if policy_ring.POLICY_VARIABLE in os.environ else STAGE_MODULE
    program = (sys.executable, "-m", module)
    words = (*hosts.stages[int(index)].command, *program, *arguments)
    os.execvp(words[0], words)


def _place(hosts: RingHosts) -> None:
    """Have the stages of this process's ring listen and run where `hosts` says."""
    load, profile, arguments = RingPlan.load, RingPlan.profile, RingPlan.stage_arguments

    def load_there(plan: RingPlan, index: int, work: AssignedWork) -> LoadStage:
        address = hosts.stages[index].address
        return replace(load(plan, index, work), address=address, stages_here=1)

    def profile_there(plan: RingPlan, index: int) -> Profile:
        addresses = (f"{hosts.stages[index].address}:{NO_PORT}",)
        return profile(plan, index).model_copy(update={"addresses": addresses})

    def arguments_there(plan: RingPlan, index: int) -> Sequence[str]:
        return (str(index), *arguments(plan, index))

    for name, changed in (
        ("load", load_there),
        ("profile", profile_there),
        ("stage_arguments", arguments_there),
    ):
        setattr(RingPlan, name, changed)
    stage_handle.STAGE_MODULE = MODULE
    stage_manager.STAND_READY_AFTER_S = math.inf
    setattr(local_endpoint, "LOCAL_ADDRESS", hosts.coordinator_address)  # noqa: B010 - for mypy


if __name__ == "__main__":
    main()
