"""What a PC lends to others of its LAN and borrows, and how a stage folds its KV, in words."""

from collections.abc import Sequence

from molink.dashboard.model.history import History
from molink.report.cell import CellPcReport
from molink.report.cluster import RingReport, StageReport
from molink.report.figures import data
from molink.report.nodes import NodeReport


def cell_lenders(history: History, node: NodeReport) -> tuple[CellPcReport, ...]:
    """The PC of a node, as its cell tells of it, and its card if that lends; none of a PC's further
    devices, and where nobody lends."""
    cell = history.state.cell
    pcs = cell.pcs if cell is not None else ()
    return tuple(one for one in pcs if one.id.partition("/")[0] == node.id)


def lending_text(lenders: Sequence[CellPcReport]) -> str:
    """Bytes that a PC and its card lend, and the PC borrows; empty: they do neither."""
    parts = list[str]()
    for one in lenders:
        if one.lendable_bytes or one.lent_bytes:
            held = f", {data(one.held_bytes)} of it held" if one.lent_bytes else ""
            device = one.id.partition("/")[2]
            of = f" on {device}" if device else ""
            parts.append(f"lends {data(one.lent_bytes)} of {data(one.lendable_bytes)}{of}{held}")
        if one.borrowed_bytes:
            own = f" beside {data(one.own_bytes)} of its own" if one.own_bytes else ""
            parts.append(f"borrows {data(one.borrowed_bytes)}{own}")
    return ", ".join(parts)


def folds_text(stage: StageReport, ring: RingReport) -> str:
    """In how few blocks a stage folds what a cut prompt leaves free, or which stage of its ring
    folds nothing, so that none of them does; empty: no stage would."""
    least = min(ring.stages, key=lambda one: one.folds)
    if least.folds > 1:
        return f"{stage.folds} blocks of those that keep all lie in one"
    folds_any = any(one.folds > 1 for one in ring.stages)
    return f"free no memory, as {least.node} folds no blocks" if folds_any else ""
