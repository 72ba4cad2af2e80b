"""Faults of a simulation; each is described by a `FaultSpec` of the scenario.

The core never learns that a fault is simulated: it sees late bytes, slow steps, copies of messages,
or nothing more at all.
"""

from molink_sim.faults.cuts import cut_links
from molink_sim.faults.disturb import disturb, disturb_link, disturb_stage, slowed
from molink_sim.faults.draw import FAULTS, draw_faults

__all__ = [
    "FAULTS",
    "cut_links",
    "disturb",
    "disturb_link",
    "disturb_stage",
    "draw_faults",
    "slowed",
]
