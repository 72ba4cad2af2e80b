"""Orders that an operator gives by a key: what is asked before, and what is done then."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from molink.dashboard.actions import Actions
from molink.dashboard.pages.lines import Row, TextSpan, line
from molink.report.nodes import NodeReport


@dataclass(frozen=True, slots=True)
class Order:
    """Order that waits to be confirmed."""

    question: str
    answer: str
    """Text that must be typed: "y", or a name where the order cannot be undone."""
    give: Callable[[], Awaitable[str]]
    """Function that carries the order out; the sentence that it ends with."""


def node_order(kind: str, node: NodeReport, actions: Actions) -> Order | str:
    """Order about a node; a sentence where it makes no sense."""
    if kind == "drain":
        if node.drained:
            return f"{node.name} is drained already: u lets it serve again."
        question = f"Drain {node.name}? It hands its layers over and does nothing until u. y/n"
        return Order(question, "y", lambda: actions.drain(node.id))
    if kind == "resume":
        if not (node.drained or node.quarantined):
            return f"{node.name} is not drained by the operator; its owner may have paused it."
        return Order(f"Let {node.name} serve again? y/n", "y", lambda: actions.resume(node.id))
    question = f"Remove {node.name} with all its devices, for good? Type its name:"
    return Order(question, node.name, lambda: actions.remove(node.id))


def intake_order(is_paused: bool, actions: Actions) -> Order:
    """Order to pause the intake, or to open it."""
    what = "Take requests again?" if is_paused else "Refuse new requests? Those under way go on."
    return Order(f"{what} y/n", "y", lambda: actions.pause_intake(not is_paused))


def invite_order(actions: Actions, made: Callable[[str], object]) -> Order:
    """Order to make an invite; `made` gets the command."""

    async def give() -> str:
        invite = await actions.invite()
        made(invite.command)
        return f"An invite for {invite.uses} PCs, good for a day. c copies it."

    return Order("Make an invite? Whoever has it can join. y/n", "y", give)


def invite_rows(command: str, width: int) -> list[Row]:
    """The page of a new invite: the command over as many lines as it takes."""
    rows = [Row(line(TextSpan("Type this line, whole, on each PC that shall help:", "title")))]
    pieces = [command[at : at + width] for at in range(0, len(command), max(1, width))]
    rows += [
        Row(line("")),
        *(Row(line(TextSpan(piece, "accent"))) for piece in pieces),
        Row(line("")),
    ]
    rows.append(Row(line("Send it as you would a password. c copies it, Esc goes back.")))
    return rows
