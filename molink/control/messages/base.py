"""What every message of the control plane is made of: its base, and fields with their bounds."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "SENTENCE_CHARACTERS_MAX",
    "Address",
    "Bytes",
    "Key",
    "Mbps",
    "Message",
    "Milliseconds",
    "ModelSize",
    "NodeId",
    "Seconds",
    "Sentence",
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
    """Never changed once made."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ModelSize(Message):
    """Of the cluster's model: what a PC must lend at least to be of use."""

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
