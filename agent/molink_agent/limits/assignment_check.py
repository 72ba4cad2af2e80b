"""Check of what the coordinator asks for against what the owner lends.

A coordinator plans with what it was told, but the owner's word counts: he may have changed a limit
meanwhile, the coordinator may be wrong about its own model, or somebody may play it. So each
assignment and each measurement is held against the loan as it is here and now, before anything is
fetched or started, and an assignment again by the files that have come.

Pure: a loan and a wish in, a sentence out.
"""

from dataclasses import dataclass

from molink.checkpoint.stage_size import StageSize
from molink.control.messages.payloads import AssignedWork
from molink_scheduler.units import gb_text

PLANNED_WITHOUT_SHARE = 0.02
"""Part of the memory that a plan may leave out of account: one by the model's shape knows no norms
and no biases, less than a hundredth of the weights even of small models."""

PROBE_BYTES_FREE = 64 * 2**20
"""Bytes of layers that are timed unnoticed: loading torch takes five times as much."""

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Loan:
    """Loan of one device, as it is now."""

    device: str = ""
    """Device that is lent, "cpu" or "cuda:N"; empty: nothing is lent."""
    threads: int = 1
    memory_bytes: int = 0
    element_bytes: int = 2
    """Bytes of a number that the device computes with by itself."""
    model: str | None = None
    """Model that the cluster serves; None: not known."""
    withheld: str = ""
    """Why the owner lends nothing now; empty: he does."""


def refusal_of_work(work: AssignedWork, loan: Loan, size: StageSize | None = None) -> str:
    """Why the assignment passes a limit; empty: it keeps to all. `size`: of the stage, once its
    files are here."""
    start, stop = work.layers
    if loan.withheld:
        return loan.withheld
    if not loan.device or work.device != loan.device:
        return f"The coordinator asks for {work.device!r}, lent is {loan.device or 'nothing'}."
    if work.threads > loan.threads:
        return f"The coordinator asks for {work.threads} threads, lent are {loan.threads}."
    if work.kv_tokens is None or work.kv_tokens < 1 or not 0 <= start < stop:
        return "The coordinator does not say what it wants held here: update MoLink there."
    if loan.model is not None and work.weights.model != loan.model:
        return "The coordinator asks for another model than its cluster serves."
    if size is None:
        return ""
    number_bytes = ELEMENT_BYTES.get(work.dtype, loan.element_bytes)
    held = size.held_bytes(number_bytes, work.kv_tokens, work.kv_dtype)
    return _too_large(f"Layers {start} to {stop - 1}", held, loan)


def refusal_of_probe(loan: Loan, size: StageSize, kv_tokens: int) -> str:
    """Why layers of random weights are not timed; empty: they fit."""
    if loan.withheld:
        return loan.withheld
    if not loan.device:
        return "No device is lent: see `molink agent doctor`."
    held = size.held_bytes(loan.element_bytes, kv_tokens)
    if held <= PROBE_BYTES_FREE:
        return ""
    return _too_large("Timing a layer of the cluster's model", held, loan)


def _too_large(what: str, held_bytes: int, loan: Loan) -> str:
    if held_bytes <= loan.memory_bytes * (1 + PLANNED_WITHOUT_SHARE):
        return ""
    held, lent = gb_text(held_bytes, 2), gb_text(loan.memory_bytes, 2)
    return f"{what} would take {held} of {loan.device}, lent are {lent}."
