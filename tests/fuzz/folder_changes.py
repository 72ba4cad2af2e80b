"""The files of a model's folder with odd values: configs, tokenizers, tables of safetensors."""

import json
from random import Random

from tests.fuzz.mutations import changed_bytes, changed_value

ENDS = (9_999, 10**4, 10**4 + 1, 10**5, 65_536, 10**6, 2**20, 2**24, 2**31 - 1, 10**9)
"""Numbers about the bounds of a model's counts, where a loop over one takes longest."""


def changed_json(data: bytes, random: Random) -> bytes:
    if random.random() < 0.15:
        return changed_bytes(data, [data], random)
    if random.random() < 0.5:
        return changed_value(data, "json", random) or data
    return _with_a_number(data, random)


def _with_a_number(data: bytes, random: Random) -> bytes:
    """The same object, a whole number in which was replaced by one about a bound."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if not isinstance(fields, dict):
        return data
    numbers = [key for key, value in fields.items() if type(value) in (int, float)]
    for key in random.sample(numbers, min(len(numbers), random.choice((1, 1, 2)))):
        fields[key] = random.choice(ENDS)
    return json.dumps(fields).encode()


def changed_table(data: bytes, random: Random) -> bytes:
    """A safetensors file with another table in front of the same data, or another length of it."""
    size = int.from_bytes(data[:8], "little")
    table, rest = data[8 : 8 + size], data[8 + size :]
    if random.random() < 0.1:
        odd = random.choice((0, 1, 2**31, 2**63, 2**64 - 1, size - 1, size + 1))
        return odd.to_bytes(8, "little") + table + rest
    table = changed_json(table, random)
    return len(table).to_bytes(8, "little") + table + rest
