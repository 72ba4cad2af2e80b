"""Blocks of the original, cut and put together, are a safetensors file of just these tensors."""

import json
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import numpy as safetensors_numpy

from molink.checkpoint.safetensors_header import StoredTensor, encode_header, parse_header
from molink.checkpoint.shard_plan import FileNeed, Place, ShardPlan
from molink.checkpoint.weights_manifest import FileEntry, WeightsManifest
from molink_agent.weights.part_file import WeightPart, parts_of

HASH = "0" * 64
HOMES = st.sampled_from([0, 1, 2, Place.EMBEDDING, None])
"""None: not needed."""


def manifest_of(tensors: list[StoredTensor], size: int, block_bytes: int) -> WeightsManifest:
    prefix = encode_header(tensors, {"format": "pt"})
    header = {
        t.name: dict(dtype="U8", shape=t.shape, data_offsets=(t.start, t.stop)) for t in tensors
    }
    header["__metadata__"] = {"format": "pt"}
    total = len(prefix) + size

    def entry(name: str, size: int, **more) -> FileEntry:
        blocks = (HASH,) * -(-size // block_bytes)
        return FileEntry(name=name, size=size, sha256=HASH, blocks=blocks, **more)

    weights = entry("w.safetensors", total, header=header, data_start=len(prefix))
    files = (entry("config.json", 10), entry("empty.txt", 0), weights)
    return WeightsManifest(
        model="m", layers_total=3, tied=False, block_bytes=block_bytes, files=files
    )


def assemble(part: WeightPart, original: bytes, block_bytes: int, order: list[int]) -> bytes:
    found = bytearray(part.size)
    found[: len(part.prefix)] = part.prefix
    for block in order:
        data = original[block * block_bytes : (block + 1) * block_bytes]
        cuts = part.cuts(block, block_bytes)
        assert cuts, "a block that is asked for gives something"
        for before, after in pairwise(cuts):
            assert before.local + before.stop - before.start == after.local, "a piece has no gaps"
        for cut in cuts:
            found[cut.local : cut.local + cut.stop - cut.start] = data[cut.start : cut.stop]
    return bytes(found)


@settings(max_examples=60, deadline=None)
@given(
    shares=st.lists(st.tuples(st.integers(0, 90), HOMES), min_size=1, max_size=12),
    block_bytes=st.integers(1, 200),
    seed=st.integers(0, 99),
)
def test_parts_hold_exactly_their_tensors(shares, block_bytes, seed):
    tensors, end = [], 0
    for number, (size, _) in enumerate(shares):
        tensors.append(StoredTensor(f"t{number}", "U8", (size,), end, end + size))
        end += size
    source = random.Random(seed)
    data = source.randbytes(end)
    manifest = manifest_of(tensors, end, block_bytes)
    homes = {t.name: home for t, (_, home) in zip(tensors, shares, strict=True) if home is not None}
    needs = (FileNeed("w.safetensors", tuple(sorted(homes)), False),) if homes else ()
    parts = parts_of(manifest, ShardPlan(range(3), needs, homes))
    assert [part.name for part in parts[:2]] == ["config.json", "empty.txt"]
    original = encode_header(tensors, {"format": "pt"}) + data
    seen: dict[str, bytes] = {}
    for part in parts[2:]:
        order = part.blocks(block_bytes)
        source.shuffle(order)
        content = assemble(part, original, block_bytes, order)
        arrays = safetensors_numpy.load(content)
        assert set(arrays) == set(part.tensors)
        assert len({homes[name] for name in arrays}) == 1
        seen |= {name: array.tobytes() for name, array in arrays.items()}
    assert seen == {t.name: data[t.start : t.stop] for t in tensors if t.name in homes}


def test_a_table_survives_being_written_and_read():
    tensors = [StoredTensor("a", "F32", (2, 3), 0, 24), StoredTensor("b", "BF16", (), 24, 26)]
    text = encode_header(tensors, {"format": "pt"})
    header = parse_header(json.loads(text[8:]), len(text))
    assert (len(text) % 8, header.metadata) == (0, {"format": "pt"})
    assert [t.shape for t in header.tensors] == [(2, 3), ()]
    assert [t.start - len(text) for t in header.tensors] == [0, 24]


def test_a_table_whose_tensors_overlap_is_none():
    """A few megabytes of them, each as long as the file, would keep a node cutting for days."""
    entry = {"dtype": "F32", "shape": [2, 3]}
    table = {"a": {**entry, "data_offsets": [0, 24]}, "b": {**entry, "data_offsets": [20, 44]}}
    with pytest.raises(ValueError, match="'a' and 'b' overlap"):
        parse_header(table, 0)
