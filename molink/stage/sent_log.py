"""Log of the rows that a stage has sent, and the messages that send them again.

What is kept, and what whoever replaces the next stage lacks, is the core's to say
(`molink_scheduler.stage.replay_log`); here are the rows themselves.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from molink.engine_protocol.values import RowsKept
from molink.stage.packing import Packing
from molink.wire.elements import ELEMENT_BYTES, Elements, TensorHeader, as_elements
from molink.wire.frames import Activations
from molink_scheduler.batch import Admission, Batch
from molink_scheduler.resume import Positions, Resume
from molink_scheduler.stage.replay_log import ReplayLog
from molink_scheduler.stage.sent_rows import SentRows


@dataclass(slots=True)
class SentLog:
    """Rows that a stage has sent of live requests, and the messages that send them again."""

    packing: Packing
    dtype: str
    """Format of the rows, by its name on the wire."""
    bytes_max: float
    rows_max: int
    """Rows of a message that sends some again."""
    log: ReplayLog = field(init=False)
    codec: str = field(init=False, default="raw")
    """Codec of the rows that were kept last."""

    def __post_init__(self) -> None:
        self.log = ReplayLog(self.bytes_max)

    def keep(self, batch: Batch, rows_TD: Elements, token_ids: tuple[int, ...]) -> None:
        """Keep the rows [T, D] of a batch, and their ids where layers read them."""
        self.codec = batch.codec
        self.log.admit(batch.admissions)
        raw_TB = rows_TD.view(np.uint8)
        row = 0
        for span in batch.spans:
            end = row + span.tokens
            sent = SentRows(span.start, span.end, raw_TB[row:end].tobytes(), token_ids[row:end])
            self.log.add(span.request_id, sent, guesses=len(span.drafts))
            row = end

    def messages(self, batch: Batch, admissions: Iterable[Admission]) -> Iterator[Activations]:
        """Messages that the stage behind lacks of requests, before the batch that admits them."""
        for admission in admissions:
            for piece, sent in self.log.batches(batch, admission, self.rows_max):
                yield self.message(piece, [sent])

    def offered(self, resume: Resume, kept: RowsKept) -> Positions:
        """Cached blocks of the epoch before that can stay here: where the next stage is fresh, only
        those whose rows it can be sent."""
        return resume.offered(kept.cached, self.log.blocks.numbers())

    def message(self, batch: Batch, sent: Sequence[SentRows]) -> Activations:
        """The message of a batch whose spans have these rows."""
        rows = b"".join(one.rows for one in sent)
        token_ids = tuple(token_id for one in sent for token_id in one.token_ids)
        packed = self.packing.pack(self._rows_of(rows), batch.codec)
        return Activations(batch, *packed, token_ids or None)

    def _rows_of(self, raw: bytes) -> Elements:
        """Rows [T, D] that were kept as bytes."""
        width = self.packing.hidden_size
        row_bytes = width * ELEMENT_BYTES[self.dtype]
        return as_elements(TensorHeader(self.dtype, len(raw) // row_bytes, width), raw)
