"""Traces of conversations that share a system prompt, made here, in Mooncake's format."""

import json
from random import Random

import pytest

BLOCK = 512


def trace_lines(conversations=40, turns=4, seconds=2000.0, seed=0):
    """Turns of each conversation: the history so far and two new blocks, the last not full."""
    random, next_hash, lines = Random(seed), 1, []
    for _ in range(conversations):
        at_s, history = random.uniform(0, seconds), [0]
        for _ in range(random.randint(1, turns)):
            new = [next_hash, next_hash + 1]
            next_hash += 2
            tokens = (len(history) + 2) * BLOCK - random.randint(0, BLOCK - 1)
            line = {"timestamp": round(1000 * at_s), "input_length": tokens}
            lines.append(
                line | {"output_length": random.randint(1, 200), "hash_ids": [*history, *new]}
            )
            history += new
            at_s += random.uniform(20, 200)
    return sorted(lines, key=lambda line: line["timestamp"])


def _write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def trace(tmp_path):
    return _write(tmp_path / "trace.jsonl", trace_lines())


@pytest.fixture
def short_trace(tmp_path):
    return _write(tmp_path / "short.jsonl", trace_lines(conversations=6, turns=3))
