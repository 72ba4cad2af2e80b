"""What a PC lends to others of its LAN and borrows, and where a stage's KV lies, in words."""

from molink.dashboard.model.figures import data, seconds
from molink.dashboard.model.history import History
from molink.report.cell import CellPcReport
from molink.report.cluster import RingReport, StageReport
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


def stage_lender_text(stage: StageReport) -> str:
    """Tokens that a stage holds itself and has borrowed room for, and how long its steps wait for
    what lies there; empty: it has never had a lender."""
    lender = stage.lender
    if lender is None:
        return ""
    borrowed = f"{lender.borrowed_tokens:,} borrowed, {lender.held_tokens:,} of them held"
    wait = f", a step waits {seconds(lender.step_wait_s)}" if lender.step_wait_s else ""
    return f"{lender.own_tokens:,} tokens of its own, {borrowed}{wait}"


def folds_text(stage: StageReport, ring: RingReport) -> str:
    """In how few blocks a stage folds what a cut prompt leaves free, or which stage of its ring
    folds nothing, so that none of them does; empty: no stage would."""
    least = min(ring.stages, key=lambda one: one.folds)
    if least.folds > 1:
        return f"{stage.folds} blocks of those that keep all lie in one"
    folds_any = any(one.folds > 1 for one in ring.stages)
    return f"free no memory, as {least.node} folds no blocks" if folds_any else ""
