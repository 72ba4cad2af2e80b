"""What a PC lends to others of its LAN and borrows, and how a stage folds its KV, in words."""

from molink.dashboard.model.history import History
from molink.report.cell import CellPcReport
from molink.report.cluster import StageReport
from molink.report.figures import data
from molink.report.nodes import NodeReport


def cell_pc(history: History, node: NodeReport) -> CellPcReport | None:
    """The PC of a node, as its cell tells of it; None: of a PC's further devices, and where nobody
    lends."""
    cell = history.state.cell
    found = [one for one in cell.pcs if one.id == node.id] if cell is not None else []
    return found[0] if found else None


def lending_text(pc: CellPcReport | None) -> str:
    """Bytes that a PC lends, and borrows; empty: it does neither."""
    if pc is None:
        return ""
    parts = list[str]()
    if pc.lendable_bytes or pc.lent_bytes:
        held = f", {data(pc.held_bytes)} of it held" if pc.lent_bytes else ""
        parts.append(f"lends {data(pc.lent_bytes)} of {data(pc.lendable_bytes)}{held}")
    if pc.borrowed_bytes:
        own = f" beside {data(pc.own_bytes)} of its own" if pc.own_bytes else ""
        parts.append(f"borrows {data(pc.borrowed_bytes)}{own}")
    return ", ".join(parts)


def folds_text(stage: StageReport) -> str:
    """In how few blocks a stage folds what a cut prompt leaves free."""
    return f"{stage.folds} blocks of those that keep all lie in one"
