"""The bytes of a message that waits for its link, and the pieces in which they leave."""

from dataclasses import dataclass

__all__ = ["Frame", "Outgoing"]

Frame = bytes | memoryview


@dataclass(slots=True)
class Outgoing:
    """The bytes of a transfer."""

    header: Frame
    buffer: Frame

    @property
    def size_bytes(self) -> int:
        """Of both."""
        return len(self.header) + len(self.buffer)

    @property
    def is_filler(self) -> bool:
        """Whether it only measures the link; nobody's traffic, so it is not counted as sent."""
        return not self.header

    def piece(self, start: int, end: int) -> Frame:
        """Bytes [start, end) of header and buffer laid end to end."""
        split = len(self.header)
        if start >= split:
            return memoryview(self.buffer)[start - split : end - split]
        return bytes(self.header[start:end]) + bytes(self.buffer[: max(0, end - split)])
