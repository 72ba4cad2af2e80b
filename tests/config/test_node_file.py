"""Files of PCs, for plans and for simulations, good and bad."""

import math
from dataclasses import replace

import pytest

from molink.checkpoint.model_config import model_shape
from molink.checkpoint.model_shape import WeightBits
from molink.config.node_file import LENT_SHARE, read_node_file
from molink.errors import UserError
from molink.hardware.format_times import FormatTimes
from molink_scheduler.placement import LinkFacts

NODE = '[[nodes]]\nname = "a"\ngpu = "rtx4090"\nupload_mbps = 10\ndownload_mbps = 20\n'
MEASURED = (
    '[[nodes]]\nname = "b"\nlends_gib = 8\ndecode_fixed_ms = 2\ndecode_row_ms = 0.1\n'
    "prefill_row_ms = 0.05\nupload_mbps = 40\ndownload_mbps = 8\none_way_ms = 5\n"
)
MODEL = model_shape("llama-3-8b")
INT4 = WeightBits(4, 2 / 128, "int4_g128")
LINK = '[[links]]\nbetween = ["a", "b"]\n'


@pytest.fixture
def read(tmp_path):
    def write(text):
        path = tmp_path / "nodes.toml"
        path.write_text(text)
        return read_node_file(path)

    return write


def test_a_device_lends_nine_tenths_unless_told_otherwise(read):
    (anna,) = read(NODE).nodes
    assert (anna.device.name, anna.times) == ("rtx4090", None)
    assert anna.lent_bytes == round(24 * LENT_SHARE * 2**30)
    (anna,) = read(NODE + "lends_gib = 24").nodes
    assert anna.lent_bytes == 24 * 2**30


def test_a_measured_pc_may_have_a_device_too(read):
    (ben,) = read(MEASURED).nodes
    assert ben.device is None and ben.times.decode_fixed_s == pytest.approx(2e-3)
    (ben,) = read(MEASURED + 'gpu = "rtx3060"').nodes
    assert ben.device.name == "rtx3060" and ben.times is not None
    (ben,) = read(MEASURED.replace("lends_gib = 8\n", "") + 'gpu = "rtx3060"').nodes
    assert ben.lent_bytes == round(12 * LENT_SHARE * 2**30)


def test_a_device_of_numbers_of_its_own(read):
    own = "memory_gib = 10\nbandwidth_gb_per_s = 500\ntflops = 30\n"
    (anna,) = read(NODE.replace('gpu = "rtx4090"\n', own)).nodes
    assert (anna.device.name, anna.device.memory_gib, anna.device.tflops) == ("a", 10, 30)


def test_measured_times_are_taken_as_they_are(read):
    (ben,) = read(MEASURED + "head_row_ms = 0.3\n").nodes
    facts = ben.facts(model_shape("qwen-7b"), 2048)
    assert (facts.id, facts.memory_bytes, facts.upload_bytes_per_s) == ("b", 8 * 2**30, 5e6)
    times = (facts.decode_fixed_s, facts.decode_row_s, facts.prefill_row_s, facts.head_row_s)
    assert times == pytest.approx((2e-3, 1e-4, 5e-5, 3e-4))
    assert facts.step_fixed_s == 0


def test_a_gpu_is_estimated_for_the_model(read):
    """404 MB at 786 GB/s, 21 us of overhead, and 33.6 MB of KV at 786 GB/s for each row."""
    facts = read(NODE).nodes[0].facts(model_shape("qwen-7b"), 2048)
    assert facts.memory_bytes == round(24 * 0.9 * 2**30)
    assert facts.decode_fixed_s == pytest.approx(404.8e6 / 786e9 + 20e-6, rel=0.02)
    assert facts.decode_row_s == pytest.approx(33.6e6 / 786e9, rel=0.05)
    assert 0 < facts.prefill_row_s < facts.decode_row_s
    assert facts.head_fixed_s == pytest.approx(1.245e9 / 786e9, rel=0.01)


def test_links_take_the_least_rate_and_the_measured_delay(read):
    plain = read(NODE + MEASURED).network().links
    assert plain["a", "b"] == LinkFacts(1e6, 0.02) and plain["b", "a"] == LinkFacts(2.5e6, 0.02)
    near = read(NODE + MEASURED + LINK + "one_way_ms = 3").network().links
    assert near["b", "a"] == LinkFacts(2.5e6, 0.003)
    measured = read(NODE + MEASURED + LINK + "one_way_ms = 3\nrate_mbps = 4").network().links
    assert measured["b", "a"] == LinkFacts(5e5, 0.003)
    slow = read(NODE + MEASURED + LINK + "rate_mbps = 9").network().links
    assert (slow["a", "b"], slow["b", "a"]) == (LinkFacts(1e6, 0.02), LinkFacts(9 * 125e3, 0.02))


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("", "has 0 PCs"),
        ("x = ", "cannot read"),
        ("nodes = 3", r"write \[\[nodes\]\]"),
        (NODE + "[[link]]\n", "link, which means nothing: take links, nodes"),
        (NODE + NODE, "same name"),
        (NODE.replace('"a"', "3"), "has the name 3"),
        (NODE.replace('"a"', '""'), "has the name ''"),
        (NODE.replace("rtx4090", "voodoo"), "no GPU 'voodoo' is known"),
        (NODE.replace('gpu = "rtx4090"\n', ""), "has no memory_gib"),
        (MEASURED + "memory_gib = 8", "has no bandwidth_gb_per_s"),
        (
            NODE.replace("upload_mbps = 10", "upload_mbps = 0"),
            "upload_mbps = 0: give a number above",
        ),
        (NODE.replace("upload_mbps = 10", 'upload_mbps = "x"'), "upload_mbps = 'x'"),
        (NODE.replace("upload_mbps = 10\n", ""), "has no upload_mbps"),
        (NODE + "one_way_ms = -1", "one_way_ms = -1"),
        (NODE + "lends_gib = inf", "lends_gib = inf"),
        (NODE + "lends_gib = 25", "lends_gib 25, but its device has 24 GiB"),
        (NODE + "uplaod = 1", "uplaod, which means nothing"),
        (MEASURED.replace("lends_gib = 8\n", ""), "has no lends_gib"),
        (MEASURED.replace("decode_row_ms = 0.1\n", ""), "has no decode_row_ms"),
        (MEASURED.replace("decode_row_ms = 0.1", "decode_row_ms = -1"), "decode_row_ms = -1"),
        (NODE + MEASURED + LINK, "says nothing"),
        (NODE + MEASURED + LINK + "one_way = 1", "one_way, which means nothing"),
        (NODE + MEASURED + LINK + "rate_mbps = 0", "rate_mbps = 0: give a number above"),
        (NODE + LINK + "one_way_ms = 1", "of its PCs"),
        (NODE + "[[links]]\nbetween = 3", "of its PCs"),
        (NODE + '[[links]]\nbetween = ["a", "a"]\none_way_ms = 1', "of its PCs"),
    ],
)
def test_one_sentence_for_each_mistake(read, text, sentence):
    with pytest.raises(UserError, match=sentence):
        read(text)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        read_node_file(tmp_path / "none.toml")


FORMATS = "[nodes.formats.int4_g128]\nread_ms = 14\nrow_ms = 7\n"


def test_a_device_may_have_measured_times_of_formats(read):
    (anna,) = read(NODE + FORMATS).nodes
    assert anna.device.formats == {"int4_g128": FormatTimes(0.014, 0.007)}
    four = replace(MODEL, weights=INT4, attention_weights=INT4)
    facts, plain = anna.facts(four, 128), anna.facts(MODEL, 128)
    weights = MODEL.layer_parameters / 1e9
    one_row_s = facts.decode_fixed_s + facts.decode_row_s
    assert one_row_s == pytest.approx(weights * math.hypot(0.014, 0.007), rel=0.02)
    assert facts.prefill_row_s > 10 * plain.prefill_row_s, "a 4090 multiplies faster than that"


@pytest.mark.parametrize(
    "text, sentence",
    [
        (NODE + "[nodes.formats.int3]\nread_ms = 1\nrow_ms = 1\n", "int3"),
        (NODE + "[nodes.formats.int8]\nread_ms = 1\n", "row_ms"),
        (NODE + "[nodes.formats.int8]\nread_ms = 0\nrow_ms = 1\n", "read_ms"),
        (NODE + "formats = 7\n", "no tables"),
        (MEASURED + FORMATS, "no device"),
    ],
)
def test_formats_that_mean_nothing_are_refused(read, text, sentence):
    with pytest.raises(UserError, match=sentence):
        read(text)
