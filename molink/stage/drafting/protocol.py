"""Drafters as the stage's loop knows them: asked, moved on by a depth at a time, then answered.

A drafter computes on the PC of the head, in the head's loop, so it is cut into steps: one step adds
a draft to each request that is asked about (one *depth*), and between two of them the loop takes
messages and lets a ready micro-batch go. Drafts are guesses: whatever goes wrong in here may make
them worse, or few, and never stops the ring. So nothing of it raises, and each question is
answered.
"""

from typing import Protocol

from molink_scheduler.drafting.asks import DraftAsk, Drafted


class Drafting(Protocol):
    """Drafters of one head."""

    @property
    def is_busy(self) -> bool:
        """Whether a question is not answered yet: the loop calls `take` again without waiting."""

    def ask(self, asks: tuple[DraftAsk, ...]) -> None:
        """Begin to answer questions, beside those under way. One that starts at token 0 begins its
        request anew, whatever was told of it before; one of a request that is asked about already
        takes the place of the other."""

    def take(self) -> Drafted | None:
        """Move the drafters on by one depth: what is answered behind it, each question once; None:
        nothing is. Called while they are busy."""

    def forget(self, request_id: int) -> None:
        """Forget a request, and its question; one that is unknown is fine."""

    def begin_epoch(self) -> None:
        """The ring goes on in another epoch: forget all requests and questions."""
