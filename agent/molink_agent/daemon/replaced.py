"""Of two agents with the same keys the one that started later stays."""

from molink.control.messages.payloads import Accepted
from molink.errors import UserError
from molink.node.control_session import ControlSession

__all__ = ["ReplacedError", "check_not_replaced"]


class ReplacedError(UserError):
    """Raised when another agent with the same keys has started later."""


def check_not_replaced(voice: ControlSession, accepted: Accepted) -> None:
    """Raises ReplacedError when the coordinator has accepted another one that started later."""
    later = accepted.started_unix_s > voice.started_unix_s
    if accepted.incarnation != voice.incarnation and later:
        raise ReplacedError(
            "Another agent has joined with this agent's keys: do not copy a data directory; "
            "delete the copy there, and join it with an invite of its own."
        )
