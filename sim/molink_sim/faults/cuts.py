"""A link is cut for a while: one more change of its rate, to 0, and back to what it would be."""

from collections.abc import Sequence
from dataclasses import replace

from molink_sim.scenario import FaultSpec, LinkChange, LinkCut, LinkSpec, RingSpec


def cut_links(rings: Sequence[RingSpec], faults: Sequence[FaultSpec]) -> list[RingSpec]:
    """The rings with all cuts among `faults` in their links' changes."""
    found = list(rings)
    for fault in faults:
        if isinstance(fault, LinkCut):
            links = list(found[fault.ring].links)
            links[fault.place] = cut_link(links[fault.place], fault.at_s, fault.until_s)
            found[fault.ring] = replace(found[fault.ring], links=tuple(links))
    return found


def cut_link(link: LinkSpec, at_s: float, until_s: float) -> LinkSpec:
    """The link with a rate of 0 between two moments; its other changes go on after the cut."""
    before = [change for change in link.changes if change.at_s < at_s]
    after = [change for change in link.changes if change.at_s > until_s]
    cut = LinkChange(at_s, 0.0, _change_in_force(link, at_s).one_way_s)
    back = replace(_change_in_force(link, until_s), at_s=until_s)
    return replace(link, changes=(*before, cut, back, *after))


def _change_in_force(link: LinkSpec, when: float) -> LinkChange:
    past = [change for change in link.changes if change.at_s <= when]
    return past[-1] if past else LinkChange(0.0, link.mbps, link.one_way_s)
