"""Formats in which keys and values are kept, and the bytes that they take."""

from typing import Literal

KvDtype = Literal["auto", "int8"]
"""How KV is kept: as the stage computes, or in int8 with a scale for each token and head."""

KV_SCALE_BYTES = 2


def kv_bytes(kv_dtype: KvDtype, element_bytes: int, values: int, vectors: int) -> int:
    """Bytes of keys and values: so many numbers in so many vectors, each with a scale in int8."""
    if kv_dtype == "int8":
        return values + KV_SCALE_BYTES * vectors
    return values * element_bytes
