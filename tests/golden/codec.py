"""One way in which values are written, with the values that stand for it.

A builder makes one value; its name is the key under which the encoding is recorded. Builders and
encoders follow the code when it moves; what was recorded stays.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Builder = Callable[[], Any]


@dataclass
class Codec:
    """Named as its file in `recorded/`. Encodings are text; bytes are hexadecimal."""

    name: str
    encode: Callable[[Any], str]
    decode: Callable[[str], Any] | None = None
    comparable: bool = True
    """False where encodings of the same value may differ here from where they were recorded."""
    builders: dict[str, Builder] = field(default_factory=dict)

    def value(self, build: Builder) -> Builder:
        assert build.__name__ not in self.builders, f"{build.__name__} is there twice"
        self.builders[build.__name__] = build
        return build

    def add(self, **builders: Builder) -> None:
        """Several at once, by name."""
        assert not self.builders.keys() & builders.keys()
        self.builders |= builders

    def encodings(self) -> dict[str, str]:
        return {name: self.encode(build()) for name, build in self.builders.items()}


def hexed(encode: Callable[[Any], bytes | memoryview]) -> Callable[[Any], str]:
    return lambda value: bytes(encode(value)).hex()


def unhexed(decode: Callable[[bytes], Any]) -> Callable[[str], Any]:
    return lambda text: decode(bytes.fromhex(text))


def text(encode: Callable[[Any], bytes]) -> Callable[[Any], str]:
    return lambda value: encode(value).decode()


def from_text(decode: Callable[[bytes], Any]) -> Callable[[str], Any]:
    return lambda line: decode(line.encode())


def itself(value: str) -> str:
    return value
