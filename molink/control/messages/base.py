"""What every message of the control plane is made of: its base, and fields with their bounds."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import CoreSchema, core_schema

from molink.errors import FrameError
from molink.wire.schema import Schema

__all__ = [
    "SENTENCE_CHARACTERS_MAX",
    "Address",
    "Bytes",
    "Embedded",
    "Key",
    "Mbps",
    "Message",
    "Milliseconds",
    "ModelSize",
    "NodeId",
    "Seconds",
    "Sentence",
    "Unreadable",
]

NodeId = Annotated[str, Field(pattern=r"^[a-z2-7]{16}$")]
"""First 80 bits of the BLAKE2b of the node's public key in base32, lower case."""

Key = Annotated[str, Field(min_length=40, max_length=40)]
"""A CURVE public key in Z85."""

Seconds = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0, le=2**50)]
Mbps = Annotated[float, Field(ge=0, le=100_000, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(ge=0, le=60_000, allow_inf_nan=False)]
SENTENCE_CHARACTERS_MAX = 500
Sentence = Annotated[str, Field(max_length=SENTENCE_CHARACTERS_MAX)]
Address = Annotated[str, Field(max_length=300, pattern=r"^[A-Za-z0-9.\-:\[\]]+:\d{1,5}$")]
"""host:port."""


class Message(BaseModel):
    """Message of the control plane; never changed once made."""

    model_config = ConfigDict(frozen=True, extra="ignore")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Part of a message that does not follow its schema; the rest of the message counts."""

    plain: dict[str, Any]
    why: str


@dataclass(frozen=True, slots=True)
class Embedded:
    """Mark of a field whose value another schema than the message's own reads and writes."""

    schema: Schema[Any]
    none: dict[str, Any] | None = None
    """What stands for None."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """By two functions; for a JSON schema, any object."""
        return core_schema.no_info_plain_validator_function(
            self._read,
            serialization=core_schema.plain_serializer_function_ser_schema(self._write),
            json_schema_input_schema=core_schema.dict_schema(core_schema.str_schema()),
        )

    def _read(self, plain: Any) -> Any:
        if plain is None or plain == self.none:
            return None
        if isinstance(plain, self.schema.of):
            return plain
        if not isinstance(plain, dict):
            raise ValueError("an object was expected")
        try:
            return self.schema.read(plain)
        except FrameError as error:
            return Unreadable(plain, str(error))

    def _write(self, value: Any) -> Any:
        if value is None:
            return self.none
        return value.plain if isinstance(value, Unreadable) else self.schema.write(value)


class ModelSize(Message):
    """Size of the cluster's model: what a PC must lend at least to be of use."""

    name: Annotated[str, Field(max_length=300)]
    layers: Annotated[int, Field(ge=1)]
    layer_bytes: Annotated[int, Field(ge=1)]
    """The smallest decoder layer's weights as they are stored."""
    element_bytes: Literal[2, 4] = 2
    """Of a number as it is stored."""
    computed_bytes: Literal[2, 4] | None = None
    """Of a number as every stage holds it; None: as each device likes it best."""

    def held_bytes(self, device_element_bytes: int) -> int:
        """One layer in a device that by itself computes in numbers of so many bytes."""
        wanted = self.computed_bytes or device_element_bytes
        return self.layer_bytes * wanted // self.element_bytes
