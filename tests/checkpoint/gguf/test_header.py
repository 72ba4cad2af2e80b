"""The table of a GGUF file says what is in the file, and a bad file is refused with one sentence
before anything large is made."""

import struct
import tracemalloc

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink.checkpoint.gguf import header as header_module
from molink.checkpoint.gguf import walk
from molink.checkpoint.gguf.block_types import (
    BLOCK_TYPES,
    OTHER_TYPES,
    PLAIN_TYPES,
    RECODED_TYPES,
)
from molink.checkpoint.gguf.header import read_gguf
from molink.errors import CheckpointError, MolinkError, UnsupportedModelError
from tests.checkpoint.gguf.written import Tensor, Typed, gguf_bytes, text, write_gguf

Q4_0 = 2
F32 = 0
MATRIX = Tensor("m", (64, 3), Q4_0, bytes(range(108)))
"""Three rows of two blocks."""
NORM = Tensor("n", (8,), F32, bytes(32))
METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "eps": 0.5,
    "flag": True,
    "tokens": ["a", "bc", "d" * 40],
    "scores": [0.5, -1.0],
    "kinds": Typed(9, [Typed(5, 1), Typed(5, -3)]),
}


def refused(tmp_path, data, *words, error=CheckpointError):
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(error) as raised:
        read_gguf(path)
    message = str(raised.value)
    assert "\n" not in message and len(message) < 400
    for word in words:
        assert word in message
    return message


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [32, 64])
def test_everything_is_found_again(tmp_path, version, alignment):
    metadata = METADATA | {"general.alignment": alignment}
    path = write_gguf(
        tmp_path / "m.gguf", metadata, [MATRIX, NORM], version=version, alignment=alignment
    )
    header = read_gguf(path)
    assert header.metadata["general.architecture"] == "llama"
    assert header.metadata["llama.block_count"] == 2
    assert header.metadata["eps"] == 0.5
    assert header.metadata["flag"] is True
    assert header.array("tokens") == METADATA["tokens"]
    assert header.array("scores") == METADATA["scores"]
    assert header.array("kinds") == [1, -3]
    assert header.array("eps") is None and header.array("nothing") is None
    matrix, norm = header.tensors
    assert (matrix.name, matrix.shape, matrix.type.name) == ("m", (3, 64), "q4_0")
    assert matrix.row_bytes == 36 and not matrix.is_plain and norm.is_plain
    assert path.read_bytes()[matrix.start : matrix.stop] == MATRIX.data
    assert matrix.start % alignment == norm.start % alignment == 0


def test_the_format_s_own_writer_is_read(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_block_count(3)
    writer.add_token_list(["x", "y"])
    numbers = np.arange(6 * 256, dtype=np.float32).reshape(6, 256)
    writer.add_tensor("plain", numbers)
    writer.add_tensor(
        "packed",
        gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.Q8_0),
        raw_dtype=gguf.GGMLQuantizationType.Q8_0,
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_gguf(tmp_path / "m.gguf")
    plain, packed = header.tensors
    assert header.metadata["llama.block_count"] == 3 and header.array("tokenizer.ggml.tokens")
    assert (plain.shape, plain.type.name) == ((6, 256), "F32")
    assert (packed.shape, packed.type.name) == ((6, 256), "q8_0")
    data = (tmp_path / "m.gguf").read_bytes()
    assert np.array_equal(
        np.frombuffer(data[plain.start : plain.stop], np.float32), numbers.ravel()
    )


def test_sizes_of_blocks_are_those_of_the_format():
    kinds = gguf.GGMLQuantizationType
    read = {**BLOCK_TYPES, **PLAIN_TYPES, **RECODED_TYPES}
    newer = read.pop(42)  # Than the package that the others are compared with.
    assert (newer.name, newer.values, newer.size) == ("Q2_0", 64, 2 + 64 // 4)
    for number, block in read.items():
        assert gguf.GGML_QUANT_SIZES[kinds(number)] == (block.values, block.size)
        assert kinds(number).name.lower() == block.name.lower()
    assert {kind.value for kind in kinds} <= {*read, *OTHER_TYPES}
    assert not {*read} & {*OTHER_TYPES}


def test_a_file_that_ends_early_is_refused_at_every_byte(tmp_path):
    whole = gguf_bytes(METADATA, [MATRIX, NORM])
    path = tmp_path / "m.gguf"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="fetch it again"):
            read_gguf(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PK\3\4" + bytes(60), "begin with GGUF"),
        (gguf_bytes({}, counts=(2**60, 0)), "tensors"),
        (gguf_bytes({}, counts=(0, 2**60)), "metadata"),
        (gguf_bytes([("a", 1), ("a", 2)]), "twice"),
        (gguf_bytes({}, [MATRIX, MATRIX]), "one name"),
        (gguf_bytes({}, [MATRIX, Tensor("n", (8,), F32, bytes(32), offset=32)]), "overlap"),
        (gguf_bytes({}, [Tensor("m", (64, 3), Q4_0, MATRIX.data, offset=10**6)]), "would end"),
        (gguf_bytes({}, [Tensor("m", (64, 3), Q4_0, MATRIX.data, offset=2**64 - 1)]), "would end"),
        (gguf_bytes({}, [Tensor("m", (2**30, 2**30), F32, b"")]), "would end"),
        (gguf_bytes({}, [Tensor("m", (2**60,), F32, b"")]), "shape"),
        (gguf_bytes({}, [Tensor("m", (48, 2), Q4_0, bytes(54))]), "shape"),
        (gguf_bytes({}, [Tensor("m", (0, 2), F32, b"")]), "shape"),
        (gguf_bytes({}, [Tensor("m", (1,) * 5, F32, bytes(4))]), "5 dimensions"),
        (gguf_bytes({}, [Tensor("m", (), F32, bytes(4))]), "0 dimensions"),
        (gguf_bytes({"general.alignment": 0}), "no size"),
        (gguf_bytes({"general.alignment": "wide"}), "no size"),
        (gguf_bytes({"general.alignment": 2**31}), "no size"),
        (gguf_bytes({"a": [[1], [2]]}), "arrays within arrays"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_one_sentence(tmp_path, data, words):
    refused(tmp_path, data, words, "bad.gguf")


def pair(kind: int, value: bytes) -> bytes:
    return gguf_bytes({}, counts=(0, 1))[:24] + text("k") + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    "bomb",
    [
        pair(8, struct.pack("<Q", 2**62)),
        pair(8, struct.pack("<Q", 2**40) + b"x" * 100),
        pair(9, struct.pack("<IQ", 8, 2**60)),
        pair(9, struct.pack("<IQ", 8, 5_000_000) + bytes(4000)),
        pair(9, struct.pack("<IQ", 12, 2**61)),
        pair(9, struct.pack("<IQ", 0, 2**40)),
        pair(9, struct.pack("<IQQ", 8, 2, 2**63) + bytes(64)),
        pair(99, b""),
        gguf_bytes({}, counts=(0, 1))[:24] + struct.pack("<Q", 2**63),
    ],
)
def test_bombs_take_no_memory(tmp_path, bomb):
    tracemalloc.start()
    try:
        refused(tmp_path, bomb)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_types_that_are_not_read_are_counted_and_left_out(tmp_path):
    tensors = [
        *(Tensor(f"t{at}", (256, 1), 999, bytes(66)) for at in range(3)),
        Tensor("q", (128, 1), 9, bytes(144)),
        MATRIX,
    ]
    header = read_gguf(write_gguf(tmp_path / "m.gguf", {}, tensors))
    assert header.unread == {"number 999": 3, "Q8_1": 1}
    assert [tensor.name for tensor in header.tensors] == ["m"]


def test_two_tensors_of_one_name_are_refused_also_where_one_is_not_read(tmp_path):
    data = gguf_bytes({}, [MATRIX, Tensor("m", (256, 1), 999, bytes(66))])
    refused(tmp_path, data, "one name, m")


def test_a_type_that_is_written_anew_keeps_its_place_in_the_file(tmp_path):
    """Its own start and stop count the bytes that it becomes; whether it overlaps with another is
    asked before."""
    q2_k = Tensor("q", (256, 2), 10, bytes(168))
    path = write_gguf(tmp_path / "m.gguf", {}, [NORM, q2_k])
    norm, tensor = read_gguf(path).tensors
    assert norm.stored is None
    assert (tensor.type.name, tensor.start, tensor.stop) == ("q8_0", 0, 2 * 8 * 34)
    assert tensor.stored.start == path.stat().st_size - 192
    overlap = [NORM, Tensor("q", (256, 2), 10, bytes(168), offset=0)]
    refused(tmp_path, gguf_bytes({}, overlap), "overlap")
    refused(tmp_path, gguf_bytes({}, [NORM, q2_k])[:-64], "would end")


def test_arrays_and_texts_that_would_take_gigabytes_are_refused(tmp_path, monkeypatch):
    """A file of some GB can hold what would be a hundred times as much in memory."""
    for module in (header_module, walk):
        monkeypatch.setattr(module, "VALUES_MAX", 1000)
    monkeypatch.setattr(walk, "TEXTS_BYTES_MAX", 5000)
    numbers = Typed(9, [Typed(0, 1)] * 1001)
    path = write_gguf(tmp_path / "m.gguf", {"big": numbers, "many": ["x" * 100] * 90})
    header = read_gguf(path)
    with pytest.raises(CheckpointError, match="big has 1001 values"):
        header.array("big")
    with pytest.raises(CheckpointError, match="texts of more than 5000 bytes"):
        header.array("many")
    refused(tmp_path, gguf_bytes({f"k{at}": "x" * 900 for at in range(6)}), "texts of more than")
    refused(tmp_path, gguf_bytes({"many": ["x"] * 1001}), "1001 texts")


def test_other_versions_and_byte_orders_are_named(tmp_path):
    first = gguf_bytes({}, version=1)
    refused(tmp_path, first, "version 1", error=UnsupportedModelError)
    swapped = gguf_bytes({}, version=3 << 24)
    refused(tmp_path, swapped, "other byte order", error=UnsupportedModelError)


def test_names_from_a_file_reach_no_terminal_raw(tmp_path):
    data = gguf_bytes({}, [Tensor("m\x1b[2J" + "x" * 500, (1,) * 5, F32, b"")])
    assert "\x1b" not in refused(tmp_path, data, "dimensions")


def test_no_file_and_an_empty_file(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_gguf(tmp_path / "none.gguf")
    refused(tmp_path, b"", "empty")


NAMES = st.text(max_size=20)
SCALARS = (
    st.integers(0, 2**32 - 1)
    | st.booleans()
    | st.text(max_size=30)
    | st.floats(width=32, allow_nan=False)
    | st.builds(Typed, st.just(11), st.integers(-(2**63), 2**63 - 1))
)
ARRAYS = (
    st.lists(st.text(max_size=9), max_size=6)
    | st.lists(st.integers(0, 2**32 - 1), max_size=6)
    | st.lists(st.booleans(), max_size=6)
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(NAMES, SCALARS, max_size=6), st.dictionaries(NAMES, ARRAYS, max_size=4))
def test_any_metadata_are_read_as_written(tmp_path_factory, scalars, arrays):
    scalars.pop("general.alignment", None)
    arrays = {name: value for name, value in arrays.items() if name not in scalars}
    arrays.pop("general.alignment", None)
    path = tmp_path_factory.getbasetemp() / "any.gguf"
    header = read_gguf(write_gguf(path, scalars | arrays, [NORM]))
    for name, value in scalars.items():
        assert header.metadata[name] == (value.value if isinstance(value, Typed) else value)
    for name, values in arrays.items():
        assert header.array(name) == values
    assert [tensor.name for tensor in header.tensors] == ["n"]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_bytes_end_in_a_table_or_a_sentence(tmp_path_factory, data):
    whole = bytearray(gguf_bytes(METADATA, [MATRIX, NORM]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "changed.gguf"
    path.write_bytes(whole)
    try:
        header = read_gguf(path)
    except MolinkError:
        return
    assert all(tensor.stop <= len(whole) for tensor in header.tensors)
