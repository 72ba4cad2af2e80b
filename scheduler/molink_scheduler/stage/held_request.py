"""One request as its stage knows it: what has come of it, what is computed, what may come next.

Pure.
"""

from dataclasses import dataclass

from molink_scheduler.batch import PREFILL, Admission, BatchClass, Span


@dataclass(slots=True)
class HeldRequest:
    """Request that a stage holds; `received` is ahead of `computed` by what waits for the
    device."""

    admission: Admission | None
    """Admission; None: it was kept from the epoch before, and not admitted again yet."""
    is_waiting: bool
    """Whether the batch that admits it waits for the device."""
    latest: BatchClass
    """Class of the newest batch that names the request."""
    received_tokens: int = 0
    computed_tokens: int = 0
    blocks_tokens: int = 0
    """Tokens for which its blocks have room."""
    cached: tuple[range, ...] = ()
    """Numbers of its blocks that are cached."""
    is_folded: bool = False
    """Whether its first blocks were folded, after which none of it is cached."""
    is_refill: bool = False
    """Whether it was admitted by rows that only rebuild cached blocks, and not again yet."""
    drafts: int = 0
    """Number of drafts at the end of what has come; the next span may begin at any of them, or
    behind them, and so says which came true."""

    @property
    def is_idle(self) -> bool:
        """Whether all that has come of it is computed."""
        return not self.is_waiting and self.computed_tokens == self.received_tokens

    @property
    def is_cut(self) -> bool:
        """Whether its prompt is cut, and computed."""
        cut = self.admission.cut if self.admission is not None else None
        return cut is not None and cut.is_cut and self.computed_tokens >= cut.prompt_tokens

    def is_kept_up_to(self, tokens: int) -> bool:
        """Whether it can be admitted again with so many tokens kept. A survivor may go back: of a
        request that ends while a fresh head replays it, no more than what was replayed is used."""
        if self.admission is None:
            return tokens <= self.received_tokens
        return tokens == self.received_tokens

    def goes_on_with(self, span: Span, batch_class: BatchClass) -> bool:
        """Whether a span is the next one of the request. None samples inside the prompt. Decode and
        prefill go past each other, so only prefill may follow what waits, and only prefill."""
        admission, received = self.admission, self.received_tokens
        if admission is None or span.end > admission.tokens_expected:
            return False
        if not received - self.drafts <= span.start <= received:
            return False
        if span.samples and span.end - len(span.drafts) < admission.prompt_tokens:
            return False
        if self.computed_tokens == received and not self.is_waiting:
            return True
        return batch_class is self.latest is PREFILL
