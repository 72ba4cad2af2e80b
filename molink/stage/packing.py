"""Activations packed on their way out and unpacked on their way in, and what that costs here.

A message is unpacked once, when it is received: one that cannot be read is dropped there like any
other malformed one, and a span that is computed in pieces is not unpacked again for each of them.
Unpacking when a batch is computed was rejected: by then its rows are planned for, and a neighbour's
mistake would end the stage. So would rows that are no numbers, or that the stage's own layers let
grow beyond its number format: they end their request and nobody else's (`fit`).
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from molink.errors import FrameError
from molink.stage.unfit_rows import unfit_rows
from molink.stage_protocol.health import PackingHealth
from molink.wire.codecs import decode, encode
from molink.wire.elements import Elements, TensorHeader, as_elements, element_name
from molink.wire.frames import Activations
from molink_scheduler.batch import Batch, Refusal, RowFault

NOTHING_YET = PackingHealth("raw", 0, 0, 0.0)


@dataclass(slots=True)
class Packing:
    """Packer of one stage's activations, in both directions.

    Figures are of the present codec, since it came into use.
    """

    hidden_size: int
    """Width of the rows that this model's stages exchange."""
    packed: PackingHealth = field(default=NOTHING_YET)
    unpacked: PackingHealth = field(default=NOTHING_YET)
    token_ids_below: int | None = None
    """Size of the vocabulary, where layers read token ids; None: rows travel without them."""
    bytes_saved: int = 0
    """Bytes saved on the way out, since the start, over all codecs."""
    refused: set[int] = field(default_factory=set)
    """Requests, not forgotten yet, some of whose rows were unfit here."""
    complaints: int = 0
    """Requests, since the start, whose rows came from the stage before with numbers not finite."""

    def pack(self, rows_TD: Elements, codec: str) -> tuple[TensorHeader, bytes | memoryview]:
        """Header and packed bytes of rows [T, D]."""
        started = time.monotonic()
        rows, width = rows_TD.shape
        header = TensorHeader(element_name(rows_TD), rows, width, codec)
        buffer = encode(codec, header, rows_TD.view(np.uint8).data.cast("B"))
        elapsed_s = time.monotonic() - started
        self.packed = _counted(self.packed, header, len(buffer), elapsed_s)
        self.bytes_saved += header.raw_bytes - len(buffer)
        return header, buffer

    def fit(
        self, batch: Batch, rows_TD: Elements, dtype: str, *, received: bool = False
    ) -> tuple[Batch, Elements]:
        """A batch and its rows [T, D], of which none is infinite, NaN or beyond `dtype`: requests
        that have such rows are refused, and theirs are zeros. `received`: the stage before has
        made them, else this one."""
        if (unfit := unfit_rows(rows_TD, dtype)) is None:
            return batch, rows_TD
        refused, row, rows_TD = list[Refusal](), 0, rows_TD.copy()
        for span in batch.spans:
            rows = slice(row, row := row + span.tokens)
            is_lost = bool(unfit.lost_T[rows].any())
            if is_lost or unfit.beyond_T[rows].any():
                fault = RowFault.RECEIVED if is_lost and received else RowFault.OVERFLOWN
                refused.append(Refusal(span.request_id, fault))
                rows_TD[rows] = 0
        self._note(refused)
        return batch.refusing(refused), rows_TD

    def _note(self, refused: Iterable[Refusal]) -> None:
        """Count a complaint about each request once, however many of its rows are under way."""
        for one in refused:
            is_new = one.request_id not in self.refused
            self.complaints += is_new and one.fault is RowFault.RECEIVED
            self.refused.add(one.request_id)

    def unpack(self, message: Activations) -> Elements:
        """Rows [T, D]. Raises FrameError when they are not this model's, or cannot be read."""
        header = message.tensor
        if header.rows < 1 or header.width != self.hidden_size:
            raise FrameError(
                f"{header.rows} rows of {header.width} where this model's have {self.hidden_size}"
            )
        started = time.monotonic()
        raw = decode(header.codec, header, message.buffer)
        # Copied, so that the rows outlive the frame.
        rows_TD = as_elements(header, bytearray(raw))
        elapsed_s = time.monotonic() - started
        self.unpacked = _counted(self.unpacked, header, len(message.buffer), elapsed_s)
        return rows_TD

    def token_ids(self, message: Activations) -> tuple[int, ...]:
        """The rows' token ids, none where the model's layers do not read them. Raises FrameError
        where they do and the message has none of this model's."""
        if self.token_ids_below is None:
            return ()
        ids = message.token_ids
        if not ids or max(ids) >= self.token_ids_below:
            raise FrameError("rows without the ids of their tokens, which this model's layers read")
        return ids


def _counted(
    figures: PackingHealth, header: TensorHeader, packed_bytes: int, elapsed_s: float
) -> PackingHealth:
    if figures.codec != header.codec:
        figures = replace(NOTHING_YET, codec=header.codec)
    return PackingHealth(
        header.codec,
        figures.raw_bytes + header.raw_bytes,
        figures.packed_bytes + packed_bytes,
        figures.seconds + elapsed_s,
    )
