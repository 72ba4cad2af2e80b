"""Baseline policies: what other systems do with a link, to measure against.

`FifoQueue`: one line for both classes, as when prefill and decode are appended to one socket (the
paper's Helix). A decode waits for every byte in front of it.

`FairQueue`: every transfer that waits gets a little in turn, as when each message has a socket of
its own (the paper's vLLM) and TCP shares the link among them. A decode of s bytes beside k prefills
takes about k + 1 times as long as alone.

Both hand out pieces although neither needs them: the pacer above must be able to stop in between,
or a baseline would be measured with a different queue in the network and not with another order.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from molink_scheduler.batch import DECODE, PREFILL
from molink_scheduler.link.transmission import (
    Chunk,
    LinkView,
    Transfer,
    TransmissionQueue,
    Waiting,
)

FIFO_PIECE_BYTES = 16 * 2**10
"""Bytes of a piece, as many as `quantum` sends at once: the two differ in order alone."""

FAIR_PIECE_BYTES = 8 * 2**10
"""A socket's turn is one segment of 1.4 KB; this is the smallest piece whose header and
acknowledgement (about 200 bytes) stay under 3 %."""


@dataclass(slots=True)
class FifoQueue(TransmissionQueue):
    """Queue that sends whole transfers in order of offer, whatever their class."""

    piece_bytes: int = FIFO_PIECE_BYTES

    def __post_init__(self) -> None:
        self.chunk_bytes_now = self.piece_bytes

    def next_chunk(self, now: float, link: LinkView) -> Chunk | None:
        """The next piece of the oldest transfer; None when nothing waits."""
        decode = self._oldest(DECODE)
        prefill = self._oldest(PREFILL)
        if decode is None or prefill is None:
            oldest = decode or prefill
        else:
            oldest = decode if decode.number < prefill.number else prefill
        return None if oldest is None else self._take(oldest, self.piece_bytes, link)


@dataclass(slots=True)
class FairQueue(TransmissionQueue):
    """Queue that sends a piece of each transfer in turn.

    Spans of one request must not overtake each other, and the far end passes on what is complete.
    So the last piece of a transfer is kept until those of its class that were offered before it
    have left: it is *parked*, out of the round, and returns when it is the oldest of its class.
    The turn that it gives up goes to that oldest, for which it waits.
    """

    piece_bytes: int = FAIR_PIECE_BYTES
    _round: OrderedDict[int, Waiting] = field(init=False, default_factory=OrderedDict)
    """Transfers that take turns, the next one first."""

    def __post_init__(self) -> None:
        self.chunk_bytes_now = self.piece_bytes

    def offer(self, transfer: Transfer) -> None:
        """Let a transfer wait. Raises ValueError when one of this id already does."""
        TransmissionQueue.offer(self, transfer)  # super() does not find its way in slotted classes.
        self._round[transfer.transfer_id] = self._lines[transfer.batch_class][transfer.transfer_id]

    def next_chunk(self, now: float, link: LinkView) -> Chunk | None:
        """A piece of the transfer whose turn it is; None when nothing waits."""
        if not self._round:
            return None
        waiting = next(iter(self._round.values()))
        oldest = self._oldest(waiting.transfer.batch_class)
        if oldest is not None and oldest is not waiting and waiting.left_bytes <= self.piece_bytes:
            del self._round[waiting.transfer.transfer_id]
            waiting = oldest
        return self._take_turn(waiting, link)

    def _take_turn(self, waiting: Waiting, link: LinkView) -> Chunk:
        chunk = self._take(waiting, self.piece_bytes, link)
        if chunk.last:
            self._leave_round(waiting)
        else:
            self._round.move_to_end(chunk.transfer_id)
        return chunk

    def _leave_round(self, gone: Waiting) -> None:
        self._round.pop(gone.transfer.transfer_id, None)
        oldest = self._oldest(gone.transfer.batch_class)
        if oldest is not None and oldest.transfer.transfer_id not in self._round:
            self._round[oldest.transfer.transfer_id] = oldest
            self._round.move_to_end(oldest.transfer.transfer_id, last=False)
