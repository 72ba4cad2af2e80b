"""What goes wrong; each fault is described by a `FaultSpec` of the scenario.

The core never learns that a fault is simulated: it sees late bytes, slow steps, copies of messages,
or nothing more at all.
"""

from molink_sim.faults.disturb import disturb
from molink_sim.faults.draw import FAULTS, draw_faults
from molink_sim.faults.outages import NodeLosses, cut_links, silence

__all__ = ["FAULTS", "NodeLosses", "cut_links", "disturb", "draw_faults", "silence"]
