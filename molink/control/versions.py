"""Versions of builds that may work together, by the numbers of the protocol that they speak.

A ring is of one number, its coordinator's: a node of a number outside the range that the
coordinator speaks is a member and is outdated. Both ends work that out, by what each tells the
other, and come to the same sentence. A build that tells no number is from before numbers were
told.
"""

from dataclasses import dataclass

from molink.wire import protocol

PROTOCOL_IF_UNSTATED = 7
"""Number of builds that tell none: some of them spoke less, all of them too little."""

PROTOCOL_HEADER = "MoLink-Protocol"
"""Header of a request for weights, with the protocol number that the node speaks."""

HOW = "`git pull && sh deploy/install.sh`"


@dataclass(frozen=True, slots=True)
class Protocols:
    """Range of numbers that a coordinator speaks."""

    oldest: int
    newest: int

    def trouble(self, number: int) -> str:
        """Why a node of this number can be in no ring of the coordinator's, and who is to update
        what, in one sentence; empty: it can."""
        if number < self.oldest:
            return (
                f"It speaks protocol {number} and this cluster {self.newest}: update MoLink on "
                f"that PC ({HOW}) and start its agent again."
            )
        if number > self.newest:
            return (
                f"It speaks protocol {number} and the coordinator only {self.newest}: update "
                f"MoLink on the coordinator's machine ({HOW}) and start it again."
            )
        return ""


def own_protocols() -> Protocols:
    """The numbers that this build speaks."""
    newest = protocol.PROTOCOL_VERSION
    return Protocols(min(protocol.PROTOCOL_MIN, newest), newest)
