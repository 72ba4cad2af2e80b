"""Whatever a coordinator asks for, no stage takes more than the owner lends."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.checkpoint.model_config import KNOWN_CONFIGS, model_shape
from molink.checkpoint.safetensors_header import StoredTensor, encode_header
from molink.checkpoint.stage_size import StageSize, probe_size, stage_size
from molink.control.messages.payloads import AssignedWork, WeightsSource
from molink_agent.limits.assignment_check import (
    PLANNED_WITHOUT_SHARE,
    PROBE_BYTES_FREE,
    Loan,
    refusal_of_probe,
    refusal_of_work,
)
from molink_scheduler.units import GB

SOURCE = WeightsSource(model="org/model")
LOAN = Loan("cuda:1", threads=2, memory_bytes=8 * GB, model="org/model")
SIZE = StageSize(weights=2**30, code_bytes=0, kv_values=1024, kv_vectors=16)


def work(**changes) -> AssignedWork:
    fields = {
        "layers": (3, 9),
        "device": "cuda:1",
        "dtype": "auto",
        "kv_tokens": 2**20,
        "threads": 2,
        "weights": SOURCE,
    }
    return AssignedWork(**(fields | changes))


def test_what_keeps_to_all_limits_is_carried_out():
    assert refusal_of_work(work(), LOAN) == ""
    assert refusal_of_work(work(), LOAN, SIZE) == ""
    twice = work(kv_tokens=5 * 2**20, kv_dtype="int8")
    assert refusal_of_work(twice, LOAN, SIZE) == ""


@pytest.mark.parametrize(
    "changes,says",
    [
        ({"device": "cuda:0"}, "asks for 'cuda:0', lent is cuda:1"),
        ({"device": "auto"}, "lent is cuda:1"),
        ({"device": "cpu"}, "lent is cuda:1"),
        ({"threads": 3}, "3 threads, lent are 2"),
        ({"kv_tokens": None}, "update MoLink there"),
        ({"kv_tokens": -(2**40)}, "update MoLink there"),
        ({"layers": (9, 3)}, "update MoLink there"),
        ({"layers": (-1, 3)}, "update MoLink there"),
        ({"weights": WeightsSource(model="org/other")}, "another model"),
        ({"kv_tokens": 4 * 2**20}, "Layers 3 to 8 would take 10.74 GB of cuda:1, lent are 8.00 GB"),
        ({"dtype": "float32", "kv_tokens": 2 * 2**20}, "would take 12.88 GB"),
        ({"kv_tokens": 8 * 2**20, "kv_dtype": "int8"}, "would take 11.01 GB"),
    ],
)
def test_what_passes_a_limit_is_refused_in_one_sentence(changes, says):
    sentence = refusal_of_work(work(**changes), LOAN, SIZE)
    assert says in sentence and sentence.endswith(".") and "\n" not in sentence


def test_while_the_owner_withholds_the_pc_nothing_is_carried_out():
    paused = Loan("cuda:1", 2, 8 * GB, model="org/model", withheld="Paused by its owner.")
    assert refusal_of_work(work(), paused) == "Paused by its owner."
    assert refusal_of_probe(paused, SIZE, 1) == "Paused by its owner."
    assert refusal_of_work(work(), Loan()) == "The coordinator asks for 'cuda:1', lent is nothing."
    assert "No device is lent" in refusal_of_probe(Loan(), SIZE, 1)


DEVICES = st.sampled_from(["cpu", "cuda:0", "cuda:1", "auto", "", "meta"])
LOANS = st.builds(
    Loan,
    device=st.sampled_from(["", "cpu", "cuda:0", "cuda:1"]),
    threads=st.integers(1, 64),
    memory_bytes=st.integers(0, 64 * GB),
    element_bytes=st.sampled_from([2, 4]),
    model=st.sampled_from([None, "org/model", "org/other"]),
    withheld=st.sampled_from(["", "Paused."]),
)
WORKS = st.builds(
    AssignedWork,
    layers=st.tuples(st.integers(-2, 100), st.integers(-2, 100)),
    device=DEVICES,
    dtype=st.sampled_from(["auto", "float32", "bfloat16", "float16", "?"]),
    kv_tokens=st.none() | st.integers(-(2**60), 2**60),
    threads=st.integers(1, 1024),
    weights=st.sampled_from([SOURCE, WeightsSource(model="org/other")]),
    kv_dtype=st.sampled_from(["auto", "int8"]),
)
SIZES = st.builds(
    StageSize,
    weights=st.integers(0, 2**40),
    code_bytes=st.integers(0, 2**40),
    kv_values=st.integers(1, 2**20),
    kv_vectors=st.integers(1, 2**14),
)


@given(WORKS, LOANS, SIZES)
def test_nothing_that_is_accepted_passes_any_limit(asked, loan, size):
    if refusal_of_work(asked, loan, size):
        return
    assert not loan.withheld
    assert asked.device == loan.device != ""
    assert asked.threads <= loan.threads
    assert loan.model in (None, asked.weights.model)
    assert 0 <= asked.layers[0] < asked.layers[1] and asked.kv_tokens >= 1
    number = {"float32": 4, "bfloat16": 2, "float16": 2}.get(asked.dtype, loan.element_bytes)
    token = size.kv_values * number
    if asked.kv_dtype == "int8":
        token = size.kv_values + 2 * size.kv_vectors
    held = size.code_bytes + number * size.weights + token * asked.kv_tokens
    assert held <= loan.memory_bytes * (1 + PLANNED_WITHOUT_SHARE)


@given(WORKS, LOANS, SIZES)
def test_what_is_refused_by_its_size_is_accepted_where_more_is_lent(asked, loan, size):
    if refusal_of_work(asked, loan) or not refusal_of_work(asked, loan, size):
        return
    more = Loan(loan.device, loan.threads, 2**110, loan.element_bytes, loan.model)
    assert refusal_of_work(asked, more, size) == ""


@given(LOANS, st.sampled_from(sorted(KNOWN_CONFIGS)), st.integers(1, 2))
def test_no_probe_takes_more_than_is_lent(loan, name, layers):
    size = probe_size(model_shape(name), layers)
    if not refusal_of_probe(loan, size, 4096):
        held = size.held_bytes(loan.element_bytes, 4096)
        assert loan.device and not loan.withheld
        assert held <= PROBE_BYTES_FREE or held <= loan.memory_bytes * (1 + PLANNED_WITHOUT_SHARE)


def test_two_layers_of_a_large_model_are_not_timed_on_a_small_pc():
    """In fp32 they took 4 GiB of a PC whose owner lends one."""
    size = probe_size(model_shape("llama-3-8b"), 2)
    loan = Loan("cpu", 2, GB, element_bytes=4)
    assert "lent are 1.00 GB" in refusal_of_probe(loan, size, 4096)


def write_stage(directory, **tensors):
    """A checkpoint of these tensors: dtype and shape by name."""
    config = {**KNOWN_CONFIGS["llama-88m"]}
    (directory / "config.json").write_text(json.dumps(config))
    stored, start = [], 0
    for name, (dtype, size, shape) in tensors.items():
        stored.append(StoredTensor(name, dtype, shape, start, start + size))
        start += size
    header = encode_header(stored, {})
    (directory / "model.safetensors").write_bytes(header + bytes(start))


def test_the_size_of_a_stage_is_that_of_its_files(tmp_path):
    write_stage(
        tmp_path,
        a=("F32", 400, (100,)),
        b=("BF16", 200, (100,)),
        c=("I8", 50, (50,)),
    )
    size = stage_size(tmp_path, (0, 3))
    shape = model_shape(tmp_path)
    vectors = 3 * 2 * shape.kv_heads
    assert size == StageSize(200, 50, kv_values=3 * shape.kv_values, kv_vectors=vectors)
    assert size.held_bytes(4, 10) == 50 + 4 * (200 + 30 * shape.kv_values)
    assert size.held_bytes(4, 10, "int8") == 50 + 800 + 30 * shape.kv_values + 20 * vectors
