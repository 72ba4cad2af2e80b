"""Base of every message of the control plane, and fields with their bounds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import CoreSchema, core_schema

from molink.errors import FrameError
from molink.json_object import JsonObject
from molink.printable import is_printable, printable_line
from molink.wire.schema import Schema

NodeId = Annotated[str, Field(pattern=r"^[a-z2-7]{16}$")]
"""First 80 bits of the BLAKE2b of the node's public key in base32, lower case."""

Key = Annotated[str, Field(min_length=40, max_length=40, pattern=r"^[!-~]*$")]
"""A CURVE public key in Z85."""

NUMBER_MAX = 2**53
"""Beyond it integers are not exact as floats; a registry numbers its assignments up to there."""

Number = Annotated[int, Field(ge=-1, le=NUMBER_MAX)]
"""Number of a round, a revision or a ring, which counts up; -1: of none."""

ProtocolNumber = Annotated[int, Field(ge=0, le=2**31)]
"""Number of the protocol that a build speaks (`molink.control.versions`)."""

ClockTime = Annotated[float, Field(ge=-1e11, le=1e11)]
"""Seconds since 1970, or between two clocks, of which one may be wrong by decades."""

Seconds = Annotated[float, Field(ge=0, le=3600)]
Bytes = Annotated[int, Field(ge=0, le=2**50)]
Mbps = Annotated[float, Field(ge=0, le=100_000)]
Milliseconds = Annotated[float, Field(ge=0, le=60_000)]


def refuse_unprintable(text: str) -> str:
    """The same text. Raises ValueError when a terminal would obey it."""
    if not is_printable(text):
        raise ValueError("it holds control characters")
    return text


# A text that a person chose and that names something is refused when a terminal would obey it; one
# that tells something is cleaned, since the rest of the message counts. No other kind of text is in
# a message: every other field has a pattern.

Printable = AfterValidator(printable_line)

Name = Annotated[str, Field(min_length=1, max_length=60), AfterValidator(refuse_unprintable)]
"""For people: a PC's host name unless its owner chose another."""

SENTENCE_CHARACTERS_MAX = 500
Sentence = Annotated[str, Field(max_length=SENTENCE_CHARACTERS_MAX), Printable]
ShortText = Annotated[str, Field(max_length=100), Printable]
"""A version, a kind of router, what a driver calls its card."""

ModelName = Annotated[str, Field(max_length=300), Printable]
Token = Annotated[str, Field(max_length=64, pattern=r"^[!-~]*$")]
"""A secret or a number that was drawn; it is compared, not read."""

Word = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,20}$")]
"""A word of this protocol: a link, a port, a kind of path."""

Address = Annotated[str, Field(max_length=300, pattern=r"^[A-Za-z0-9.\-:\[\]]+:\d{1,5}$")]
"""host:port."""

OptionalAddress = Annotated[
    str, Field(max_length=300, pattern=r"^([A-Za-z0-9.\-:\[\]]+:\d{1,5})?$")
]
"""The same, or empty."""


_BARE = bytes(code for code in range(0x20, 0x7F) if code != ord("\\"))
"""Bytes of JSON whose texts are what stands there: printable, and nothing is escaped."""


def is_bare(payload: bytes) -> bool:
    """Whether no text of a JSON payload can hold what a terminal obeys, as nearly none does: it is
    told at a glance, where looking at each text takes as long as reading all the rest."""
    return not payload.translate(None, _BARE)


def texts_in(plain: Any) -> Iterator[str]:
    """All texts of a JSON value, names of fields too."""
    if isinstance(plain, str):
        yield plain
    elif isinstance(plain, dict):
        for name, value in plain.items():
            yield str(name)
            yield from texts_in(value)
    elif isinstance(plain, list | tuple):
        for value in plain:
            yield from texts_in(value)


class Message(BaseModel):
    """Message of the control plane; never changed once made. Its numbers are finite, since JSON has
    no word for others."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Part of a message that does not follow its schema; the rest of the message counts."""

    plain: JsonObject
    why: str


@dataclass(frozen=True, slots=True)
class Embedded:
    """Mark of a field whose value another schema than the message's own reads and writes."""

    schema: Schema[Any]
    none: JsonObject | None = None
    """What stands for None."""
    is_vital: bool = False
    """Whether what holds the value cannot be read without it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Schema by two functions; for a JSON schema, any object. Its context, where there is one,
        tells whether what is read `is_bare`."""
        return core_schema.with_info_plain_validator_function(
            self._read,
            serialization=core_schema.plain_serializer_function_ser_schema(self._write),
            json_schema_input_schema=core_schema.dict_schema(core_schema.str_schema()),
        )

    def _read(self, plain: Any, info: core_schema.ValidationInfo[bool | None]) -> Any:
        if plain is None or plain == self.none:
            return None
        if isinstance(plain, self.schema.of):
            return plain
        if not isinstance(plain, dict):
            raise ValueError("an object was expected")
        if not info.context:
            refuse_unprintable("".join(texts_in(plain)))
        try:
            return self.schema.read(plain)
        except FrameError as error:
            if self.is_vital:
                raise ValueError(str(error)) from None
            return Unreadable(plain, str(error))

    def _write(self, value: Any) -> Any:
        if value is None:
            return self.none
        return value.plain if isinstance(value, Unreadable) else self.schema.write(value)


class ModelSize(Message):
    """Size of the cluster's model: what a PC must lend at least to be of use."""

    name: ModelName
    layers: Annotated[int, Field(ge=1, le=10_000)]
    layer_bytes: Annotated[int, Field(ge=1, le=2**50)]
    """The smallest decoder layer's weights in numbers of `element_bytes`."""
    code_bytes: Annotated[int, Field(ge=0, le=2**50)] = 0
    """The part of it that is codes of quantized weights, which no format of numbers changes."""
    element_bytes: Literal[2, 4] = 2
    """Bytes of a number of the weights as it is stored."""
    computed_bytes: Literal[2, 4] | None = None
    """Bytes of a number as every stage holds it; None: as each device likes it best."""

    def held_bytes(self, device_element_bytes: int) -> int:
        """One layer in a device that by itself computes in numbers of so many bytes."""
        wanted = self.computed_bytes or device_element_bytes
        numbers_bytes = max(0, self.layer_bytes - self.code_bytes)
        return self.code_bytes + numbers_bytes * wanted // self.element_bytes
