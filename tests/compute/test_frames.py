"""What passes between a stage and its weights comes out as it went in."""

import numpy as np
import pytest

from molink.compute.frames import call_frame, pass_parts, read_call, read_pass, read_rows
from molink.engine_protocol.computing import LayerCall, ModelPass
from molink.errors import FrameError

WIDTH = 6


def rows(*shape: int, dtype=np.float32):
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


def joined(parts) -> memoryview:
    return memoryview(b"".join(bytes(memoryview(part).cast("B")) for part in parts))


@pytest.mark.parametrize(
    "given",
    [
        ModelPass([3, 4, 5], True, [7, 8, 9]),
        ModelPass([3, 9], False, rows_TD=rows(2, WIDTH), keep=[1]),
        ModelPass([0], False, [2**31], rows(1, WIDTH)),
        ModelPass([1, 2], True, rows_TD=rows(2, WIDTH), keep=[]),
    ],
)
def test_a_pass(given):
    read = read_pass(joined(pass_parts(given)), "float32", WIDTH)
    assert read[:3] == tuple(map(type_of_read, given[:3])) and read.keep == given.keep
    assert (read.rows_TD is None) == (given.rows_TD is None)
    if given.rows_TD is not None:
        assert read.rows_TD.tobytes() == given.rows_TD.tobytes()


def type_of_read(value):
    return list(value) if not isinstance(value, bool) else value


@pytest.mark.parametrize("sinks", [None, rows(4)])
def test_a_call(sinks):
    numbers = (0.1, 30.0, None) if sinks is None else (1 / 3, None, 5)
    call = LayerCall(11, rows(3, 4, 8), rows(3, 2, 8), rows(3, 2, 5), sinks, *numbers)
    frame, parts = call_frame(call)
    read = read_call(frame, joined(parts), "float32")
    assert read.layer == 11 and read[5:] == call[5:]
    for one, other in zip(read[1:5], call[1:5], strict=True):
        assert (one is None) == (other is None)
        assert one is None or (one.shape == other.shape and one.tobytes() == other.tobytes())


def test_what_is_read_outlives_the_memory_that_it_came_in():
    memory = bytearray(rows(2, 3).tobytes())
    read = read_rows(memoryview(memory), "float32", (2, 3))
    memory[:] = bytes(len(memory))
    assert read.tobytes() == rows(2, 3).tobytes()


@pytest.mark.parametrize("cut", [1, 4, 40])
def test_bytes_that_are_missing_are_no_call(cut):
    frame, parts = call_frame(
        LayerCall(0, rows(3, 4, 8), rows(3, 2, 8), rows(3, 2, 8), None, 1.0, None, None)
    )
    with pytest.raises(FrameError):
        read_call(frame, joined(parts)[:-cut], "float32")
