"""A model in several GGUF files is read as one, or refused with one sentence."""

import pytest

from molink.checkpoint.gguf.split_files import PARTS_MAX, read_gguf_parts
from molink.errors import CheckpointError
from tests.checkpoint.gguf.written import Tensor, Typed, write_gguf

U16, I32 = 2, 5


def keys(number, count, tensors):
    return {
        "split.no": Typed(U16, number),
        "split.count": Typed(U16, count),
        "split.tensors.count": Typed(I32, tensors),
    }


def norm(name):
    return Tensor(name, (8,), 0, name.encode() * 32)


def part_path(folder, number, count=3):
    return folder / f"big.q4-{number:05}-of-{count:05}.gguf"


@pytest.fixture
def parts(tmp_path):
    """Metadata alone, as the newest tools write the first part, then two tensors and one."""
    first = {"general.architecture": "llama", "llama.block_count": 2}
    write_gguf(part_path(tmp_path, 1), first | keys(0, 3, 3), [])
    write_gguf(part_path(tmp_path, 2), keys(1, 3, 3), [norm("a"), norm("b")])
    write_gguf(part_path(tmp_path, 3), keys(2, 3, 3), [norm("c")])
    return tmp_path


@pytest.mark.parametrize("named", [1, 2, 3])
def test_parts_are_one_model_whichever_is_named(parts, named):
    header = read_gguf_parts(part_path(parts, named))
    assert header.path == part_path(parts, 1)
    assert header.metadata["llama.block_count"] == 2
    assert [one.name for one in header.tensors] == ["a", "b", "c"]
    assert [one.path for one in header.tensors] == [part_path(parts, n) for n in (2, 2, 3)]
    for one in header.tensors:
        assert one.path.read_bytes()[one.start : one.stop] == one.name.encode() * 32


def test_a_file_that_is_whole_by_itself(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"}, [norm("a")])
    assert len(read_gguf_parts(path).tensors) == 1
    path = write_gguf(tmp_path / "s.gguf", keys(0, 1, 1), [norm("a")])
    assert len(read_gguf_parts(path).tensors) == 1


def change(number, metadata, tensors=()):
    return lambda folder: write_gguf(part_path(folder, number), metadata, tensors)


OTHER = {"general.architecture": "qwen3"} | keys(2, 3, 3)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: part_path(folder, 2).unlink(), "is missing, part 2 of 3"),
        (lambda folder: part_path(folder, 3).write_bytes(b"GGUF"), "ends in the middle"),
        (change(3, keys(1, 3, 3), [norm("c")]), "part 1 (from 0) of 3"),
        (change(3, keys(2, 4, 3), [norm("c")]), "part 2 (from 0) of 4"),
        (change(3, {}, [norm("c")]), "part None (from 0) of None"),
        (change(3, keys(2, 3, 3), []), "hold 2 tensors"),
        (change(3, keys(2, 3, 3), [norm("a")]), "hold 3 tensors, of which 2 differ"),
        (change(3, keys(2, 3, 9), [norm("c")]), "differ in split.tensors.count"),
        (change(3, OTHER, [norm("c")]), "differ in general.architecture"),
        (change(1, keys(0, PARTS_MAX + 1, 3)), f"claims {PARTS_MAX + 1} parts"),
        (change(1, {"split.count": "many\x1b[2J"}), "claims many"),
        (change(1, {}), "whole by itself"),
    ],
)
def test_parts_that_are_missing_or_do_not_match_are_refused(parts, spoil, words):
    spoil(parts)
    with pytest.raises(CheckpointError) as raised:
        read_gguf_parts(part_path(parts, 1))
    message = str(raised.value)
    assert words in message and "\n" not in message and "\x1b" not in message


def test_a_part_of_another_name_is_told_its_own(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", keys(0, 3, 3), [])
    with pytest.raises(CheckpointError, match="NAME-00001-of-00003"):
        read_gguf_parts(path)
