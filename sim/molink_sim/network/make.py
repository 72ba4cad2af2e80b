"""The link that a system drives over a wire."""

from molink_sim.clock import Clock
from molink_sim.network.ideal import IdealLink
from molink_sim.network.line import Line
from molink_sim.network.link import Deliver, Link
from molink_sim.network.paced import PacedLink
from molink_sim.network.policies import make_queue
from molink_sim.network.unpaced import FairLink, FifoLink, SerialLink
from molink_sim.scenario import SystemSpec

LINK_MODELS = ("paced", "ideal")


def make_link(system: SystemSpec, clock: Clock, line: Line, deliver: Deliver) -> Link:
    """A link at rest, as the system's settings want it."""
    if system.paced and system.link_model == "ideal":
        return IdealLink(clock, line, deliver)
    if system.paced:
        return PacedLink.over(clock, line, make_queue(system.policy), deliver)
    if system.policy == "fifo":
        return FifoLink(clock, line, deliver)
    if system.policy == "fair":
        return FairLink(clock, line, deliver)
    return SerialLink(clock, line, make_queue(system.policy), deliver)
