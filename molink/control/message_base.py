"""What every message of the control plane is made of: its base, and fields with their bounds."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "Address",
    "Bytes",
    "Key",
    "Mbps",
    "Message",
    "Milliseconds",
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
Sentence = Annotated[str, Field(max_length=500)]
Address = Annotated[str, Field(max_length=300, pattern=r"^[A-Za-z0-9.\-:\[\]]+:\d{1,5}$")]
"""host:port."""


class Message(BaseModel):
    """Never changed once made."""

    model_config = ConfigDict(frozen=True, extra="ignore")
