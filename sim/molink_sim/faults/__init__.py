"""What goes wrong, one kind to a file; each is told by a `FaultSpec` of the scenario.

The core never learns that a fault is simulated: it sees late bytes, slow steps, copies of messages,
or nothing more at all.
"""

from molink_sim.faults.disturb import disturb
from molink_sim.faults.draw import FAULTS, draw_faults
from molink_sim.faults.link_cut import cut_links
from molink_sim.faults.node_loss import NodeLosses, silence

__all__ = ["FAULTS", "NodeLosses", "cut_links", "disturb", "draw_faults", "silence"]
