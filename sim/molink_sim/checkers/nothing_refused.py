"""Nothing is refused: what a sound head plans never meets an objection of a stage's book."""

from molink_sim.checkers.checker import Checker, Place


class NothingRefused(Checker):
    """Invariant that no stage drops a message of its neighbour."""

    name = "no stage refuses what it is sent"

    def refused(self, place: Place, reason: str) -> None:
        """A sound neighbour gives no reason for it."""
        self.mistake(f"{place} refused a message: {reason}")
