"""What passes between a stage and the process with its weights, behind a lender's frame headers.

| kind | from | says |
|---|---|---|
| RUN | stage | a pass over T rows: positions, token ids, rows [T, D], whose logits are wanted |
| CALL | weights | queries [T, H, A], keys [T, K, A], values [T, K, V] and sinks [H] of one layer |
| ATTENDED | stage | attention [T, H, V] of the last call |
| COMPUTED | weights | rows [T, D] or logits [R, W] of the last pass |
| REFUSED | weights | why it cannot compute: a clause for a person |

Between a CALL and its ATTENDED a further RUN may come, which ends before: a step that interrupts
another one. What is read is copied, as the memory that it came in is used for that one, too.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from molink.engine_protocol.computing import LayerCall, ModelPass
from molink.errors import FrameError
from molink.lender.protocol import Buffer, Frame, Kind
from molink.wire.elements import ELEMENT_BYTES, Elements, TensorHeader, as_elements

PASS = struct.Struct("<4q")
"""Rows, whether some are pieces of prompts, token ids, and rows kept: -1 where none are asked
for."""

CALL = struct.Struct("<6idd")
"""Query heads, kv heads, head sizes of keys and of values, sinks, window (0: none); scale, and cap
on the scores (0: none)."""


def pass_parts(given: ModelPass) -> list[Buffer]:
    """Bytes of a pass."""
    keep = -1 if given.keep is None else len(given.keep)
    head = PASS.pack(len(given.positions), given.has_pieces, len(given.token_ids), keep)
    numbers = [*given.positions, *given.token_ids, *(given.keep or ())]
    parts: list[Buffer] = [head, np.array(numbers, np.int64).data]
    if given.rows_TD is not None:
        parts.append(np.ascontiguousarray(given.rows_TD).data)
    return parts


def read_pass(content: memoryview, dtype: str, width: int) -> ModelPass:
    """The pass, of rows of so many numbers. Raises FrameError for bytes that are none."""
    rows, has_pieces, ids, keep = PASS.unpack_from(content)
    numbers = rows + ids + max(0, keep)
    end = PASS.size + 8 * numbers
    given: npt.NDArray[Any] = np.frombuffer(content[PASS.size : end], np.int64)
    positions, token_ids, kept = np.split(given, [rows, rows + ids])
    rows_TD = None
    if len(content) > end:
        rows_TD = _elements(content[end:], dtype, (rows, width))
    wanted = None if keep < 0 else kept.tolist()
    return ModelPass(positions.tolist(), bool(has_pieces), token_ids.tolist(), rows_TD, wanted)


def call_frame(call: LayerCall) -> tuple[Frame, list[Buffer]]:
    """The frame of a layer's call, and its bytes."""
    rows, heads, key_size = call.q_THA.shape
    kv_heads, value_size = call.v_TKV.shape[1:]
    sinks = 0 if call.sinks_H is None else len(call.sinks_H)
    sizes = (heads, kv_heads, key_size, value_size, sinks, call.window or 0)
    tensors = [call.q_THA, call.k_TKA, call.v_TKV, call.sinks_H]
    parts: list[Buffer] = [CALL.pack(*sizes, call.scale, call.softcap or 0.0)]
    parts += [np.ascontiguousarray(one).data for one in tensors if one is not None]
    return Frame(Kind.CALL, call.layer, rows), parts


def read_call(frame: Frame, content: memoryview, dtype: str) -> LayerCall:
    """The call. Raises FrameError for bytes that are none."""
    heads, kv_heads, key_size, value_size, sinks, window, scale, softcap = CALL.unpack_from(content)
    rows = frame.number
    shapes = [(rows, heads, key_size), (rows, kv_heads, key_size), (rows, kv_heads, value_size)]
    found, start = list[Elements](), CALL.size
    for shape in [*shapes, (sinks,)]:
        stop = start + ELEMENT_BYTES[dtype] * int(np.prod(shape))
        found.append(_elements(content[start:stop], dtype, shape))
        start = stop
    q_THA, k_TKA, v_TKV, sinks_H = found
    given = (scale, softcap or None, window or None)
    return LayerCall(frame.layer, q_THA, k_TKA, v_TKV, sinks_H if sinks else None, *given)


def read_rows(content: memoryview, dtype: str, shape: Sequence[int]) -> Elements:
    """Elements of this shape, of which one size may be -1: what is there. Raises FrameError where
    there are not as many."""
    return _elements(content, dtype, shape)


def _elements(content: memoryview, dtype: str, shape: Sequence[int]) -> Elements:
    count = len(content) // ELEMENT_BYTES[dtype]
    try:
        flat = as_elements(TensorHeader(dtype, 1, count), content)
        return flat.reshape(shape).copy()
    except ValueError as error:
        raise FrameError(f"{len(content)} bytes are no {dtype} numbers of {shape}") from error
