"""The table of a GGUF file taken apart, and put together again with odd counts, types and values.

Bytes turned at random end mostly where a length no longer fits. So most inputs here are whole files
that say odd things: they come as far as what makes settings, a tokenizer and tensors of them.
"""

import struct
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from molink.checkpoint.gguf.header import read_gguf
from molink.importing.gguf.architectures import ARCHITECTURES
from tests.checkpoint.gguf.written import ARRAY, FORMATS, STRING, Tensor, Typed, gguf_bytes
from tests.fuzz.mutations import changed_bytes

Pairs = list[tuple[str, Typed]]

NUMBERS = (0, 1, 2, 3, 7, 64, 4096, 65_536, 65_537, 10**5, 10**5 + 1, 2**20, 2**24, 2**31 - 1)
LARGE = (2**31, 2**32 - 1, 4 * 10**9, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
FLOATS = (0.0, -1.0, 0.5, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "x", "llama", "gpt2", "t5", "gemma4", "yarn", "\u2581", "\0", "{{", "ab" * 40_000)
BAD_TEXTS = (b"\xff\xfe", b"\xed\xa0\x80")
TYPES = (*range(42), 2**16, 2**32 - 1)
REPEATED_MAX = 20_000
"""Of an array's values and of a text's characters that are made many."""


def taken_apart(path: Path) -> tuple[Pairs, list[Tensor]]:
    """Metadata and tensors of a good file."""
    data, header = path.read_bytes(), read_gguf(path)
    at = 24
    pairs: Pairs = []
    for _ in header.metadata:
        key, at = _text(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        value, at = _value(data, at + 4, kind)
        pairs.append((key, Typed(kind, value)))
    tensors = [
        Tensor(one.name, one.shape[::-1], _number(data, one.name), data[one.start : one.stop])
        for one in header.tensors
    ]
    return pairs, tensors


def _text(data: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<Q", data, at)
    return data[at + 8 : at + 8 + size].decode(), at + 8 + size


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind == STRING:
        return _text(data, at)
    if kind == ARRAY:
        inner, count = struct.unpack_from("<IQ", data, at)
        at, values = at + 12, []
        for _ in range(count):
            value, at = _value(data, at, inner)
            values.append(Typed(inner, value))
        return values, at
    form = "<" + FORMATS[kind]
    return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)


def _number(data: bytes, name: str) -> int:
    """The type of a tensor, as its entry in the table gives it."""
    mark = struct.pack("<Q", len(name)) + name.encode()
    at = data.index(mark) + len(mark)
    (dimensions,) = struct.unpack_from("<I", data, at)
    return int(struct.unpack_from("<I", data, at + 4 + 8 * dimensions)[0])


def mutated_gguf(pairs: Pairs, tensors: list[Tensor], random: Random) -> bytes:
    """A file that differs from a good one in some things."""
    pairs, tensors = list(pairs), list(tensors)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if random.random() < 0.65:
            _change_pairs(pairs, random)
        else:
            _change_tensors(tensors, random)
    counts = None
    if random.random() < 0.04:
        counts = random.choice(NUMBERS + LARGE), random.choice((len(pairs), *LARGE))
    whole = gguf_bytes(pairs, tensors, counts=counts)
    if random.random() < 0.15:
        table = len(whole) - sum(len(one.data) for one in tensors)
        return changed_bytes(whole[:table], [whole], random) + whole[table:]
    return whole


# -- metadata -------------------------------------------------------------------------------------


def _change_pairs(pairs: Pairs, random: Random) -> None:
    if not pairs:
        return
    at = random.randrange(len(pairs))
    key, value = pairs[at]
    match random.randrange(12):
        case 0:
            del pairs[at]
        case 1:
            pairs.insert(at, (random.choice(pairs)[0], value))
        case 2:
            pairs[at] = random.choice(pairs)[0], value
        case 3:
            pairs[:] = _of_another_architecture(pairs, random)
        case _:
            pairs[at] = key, _changed(value, random)


def _of_another_architecture(pairs: Pairs, random: Random) -> Pairs:
    name = random.choice([one for one in ARCHITECTURES if " " not in one])
    old = next((str(value.value) for key, value in pairs if key == "general.architecture"), "")
    return [
        (key.replace(f"{old}.", f"{name}.", 1), value)
        if key != "general.architecture"
        else (key, Typed(STRING, name))
        for key, value in pairs
    ]


def _changed(value: Typed, random: Random) -> Typed:
    """Another value, mostly of the same type."""
    if random.random() < 0.15:
        value = Typed(random.choice((4, 5, 6, 7, STRING, ARRAY, 10, 11)), [])
    match value.kind:
        case 8:
            return Typed(STRING, _changed_text(str(value.value or ""), random))
        case 9:
            return Typed(ARRAY, _changed_array(list(value.value), random))
        case 6:
            return Typed(6, random.choice(FLOATS))
        case 7:
            return Typed(7, random.random() < 0.5)
        case 4 | 5 | 10 | 11:
            if random.random() < 0.4:
                return Typed(10, random.choice(LARGE))
            return Typed(value.kind, random.choice(NUMBERS))
    return value


def _changed_text(text: str, random: Random) -> str | bytes:
    match random.randrange(5):
        case 0:
            return random.choice(BAD_TEXTS)
        case 1:
            return (text or "a") * random.randint(2, 1 + REPEATED_MAX // (len(text) or 1))
        case 2:
            return text[: random.randint(0, len(text))]
    return random.choice(TEXTS)


def _changed_array(values: list[Typed], random: Random) -> list[Typed]:
    at = random.randrange(len(values) + 1)
    match random.randrange(6):
        case 0:
            return values[:at]
        case 1 if values:
            return values * random.randint(2, 2 + REPEATED_MAX // len(values))
        case 2:
            return [Typed(ARRAY, values[:3])] * random.randint(1, 50)
        case 3:
            return [Typed(6, random.choice(FLOATS)) for _ in range(max(1, len(values)))]
        case _ if at < len(values):
            one = _changed(values[at], random)
            if one.kind == values[at].kind:
                values[at] = one
    return values


# -- tensors --------------------------------------------------------------------------------------


def _change_tensors(tensors: list[Tensor], random: Random) -> None:
    if not tensors:
        return
    at = random.randrange(len(tensors))
    one = tensors[at]
    match random.randrange(8):
        case 0:
            del tensors[at]
        case 1:
            tensors.insert(at, random.choice(tensors))
        case 2:
            tensors[at] = replace(one, name=_other_name(one.name, tensors, random))
        case 3:
            tensors[at] = replace(one, offset=random.choice(NUMBERS + LARGE))
        case 4 | 5:
            tensors[at] = replace(one, type=random.choice(TYPES))
        case 6:
            tensors[at] = replace(one, dimensions=_other_dimensions(one.dimensions, random))
        case 7:
            tensors[at] = replace(one, data=one.data[: random.randint(0, len(one.data))])


def _other_name(name: str, tensors: list[Tensor], random: Random) -> str:
    others = [random.choice(tensors).name, "rope_freqs.weight", "output.weight", "x" * 2000]
    return random.choice([*others, name.replace("blk.0", "blk.99999"), f"{name}.weight"])


def _other_dimensions(dimensions: Any, random: Random) -> list[int]:
    changed = list(dimensions)
    match random.randrange(4):
        case 0:
            return changed[::-1]
        case 1:
            return [*changed, random.choice(NUMBERS + LARGE)] * random.choice((1, 1, 3))
        case 2:
            return changed[1:]
    changed[random.randrange(len(changed))] = random.choice(NUMBERS + LARGE)
    return changed
