"""A model in several GGUF files, read as one.

Each part is a GGUF file of its own, named `NAME-00001-of-00003.gguf`, with keys that say which one
of how many it is and how many tensors all have together; the first has the metadata.
"""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from molink.checkpoint.gguf.header import GgufHeader, read_gguf
from molink.errors import CheckpointError
from molink.printable import printable_line

NUMBER, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"
ARCHITECTURE = "general.architecture"

PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII)

PARTS_MAX = 1000
"""Most parts of a model; published ones of 600 GB have some dozen."""


def read_gguf_parts(path: Path) -> GgufHeader:
    """The table of a file, or of the model of which the file is a part; the other parts stand
    beside it. Raises CheckpointError when a file is damaged, a part is missing, or parts do not
    belong together.
    """
    header = read_gguf(path)
    count = header.metadata.get(COUNT, 0)
    if not isinstance(count, int) or not 0 <= count <= PARTS_MAX:
        raise CheckpointError(f"{path} claims {_word(count)} parts: fetch it again")
    match = PART_NAME.fullmatch(path.name)
    if count <= 1:
        if match and int(match["count"]) > 1:
            raise CheckpointError(
                f"{path} is named as part of a model, but is whole by itself: give it another name"
            )
        return header
    if match is None or int(match["count"]) != count:
        raise CheckpointError(
            f"{path} is one of {count} parts: give each its published name, as in "
            f"NAME-00001-of-{count:05}.gguf"
        )
    names = [f"{match['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    return _joined([_part(path.with_name(name), at, count) for at, name in enumerate(names)])


def _part(path: Path, at: int, count: int) -> GgufHeader:
    if not path.is_file():
        raise CheckpointError(
            f"{path} is missing, part {at + 1} of {count}: fetch it and put it beside the others"
        )
    header = read_gguf(path)
    said = header.metadata.get(NUMBER), header.metadata.get(COUNT)
    if said != (at, count):
        raise CheckpointError(
            f"{path} says that it is part {_word(said[0])} (from 0) of {_word(said[1])}, not what "
            "its name says: fetch it again"
        )
    return header


def _joined(parts: list[GgufHeader]) -> GgufHeader:
    first = parts[0]
    for part in parts[1:]:
        for key in (ARCHITECTURE, TENSORS):
            if part.metadata.get(key, first.metadata.get(key)) != first.metadata.get(key):
                raise CheckpointError(
                    f"{part.path} and {first.path} differ in {key}: they are parts of two models, "
                    "so fetch all parts again"
                )
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    unread: Counter[str] = Counter()
    for part in parts:
        unread.update(part.unread)
    count = len(tensors) + unread.total()
    expected = first.metadata.get(TENSORS, count)
    if expected != count or len({tensor.name for tensor in tensors}) < len(tensors):
        raise CheckpointError(
            f"The {len(parts)} parts of {first.path} hold {count} tensors, of which "
            f"{len({tensor.name for tensor in tensors})} differ, where it names "
            f"{_word(expected)}: fetch them again"
        )
    return replace(first, tensors=tensors, unread=unread)


def _word(value: object) -> str:
    return printable_line(str(value))[:40]
