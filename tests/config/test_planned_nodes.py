"""What a placement is told of the PCs of a file."""

import pytest

from molink.checkpoint.model_config import model_shape
from molink.config.planned_nodes import read_planned_nodes
from molink_scheduler.placement import LinkFacts

NODE = '[[nodes]]\nname = "a"\ngpu = "rtx4090"\nupload_mbps = 10\ndownload_mbps = 20\n'
MEASURED = (
    '[[nodes]]\nname = "b"\nlends_gib = 8\ndecode_fixed_ms = 2\ndecode_row_ms = 0.1\n'
    "prefill_row_ms = 0.05\nhead_row_ms = 0.3\n"
    "upload_mbps = 40\ndownload_mbps = 8\none_way_ms = 5\n"
)
LINK = '[[links]]\nbetween = ["a", "b"]\n'


@pytest.fixture
def nodes_file(tmp_path):
    def write(text):
        path = tmp_path / "nodes.toml"
        path.write_text(text)
        return path

    return write


def test_measured_times_are_taken_as_they_are(nodes_file):
    nodes = read_planned_nodes(nodes_file(NODE + MEASURED))
    _, ben = nodes.facts(model_shape("qwen-7b"), 2048)
    assert (ben.id, ben.memory_bytes, ben.upload_bytes_per_s) == ("b", 8 * 2**30, 5e6)
    times = (ben.decode_fixed_s, ben.decode_row_s, ben.prefill_row_s, ben.head_row_s)
    assert times == pytest.approx((2e-3, 1e-4, 5e-5, 3e-4))
    assert ben.step_fixed_s == 0


def test_a_gpu_is_estimated_for_the_model(nodes_file):
    """404 MB at 786 GB/s, 21 us of overhead, and 33.6 MB of KV at 786 GB/s for each row."""
    nodes = read_planned_nodes(nodes_file(NODE))
    (anna,) = nodes.facts(model_shape("qwen-7b"), 2048)
    assert anna.memory_bytes == round(24 * 0.9 * 2**30)
    assert anna.decode_fixed_s == pytest.approx(404.8e6 / 786e9 + 20e-6, rel=0.02)
    assert anna.decode_row_s == pytest.approx(33.6e6 / 786e9, rel=0.05)
    assert 0 < anna.prefill_row_s < anna.decode_row_s
    assert anna.head_fixed_s == pytest.approx(1.245e9 / 786e9, rel=0.01)


def test_links_take_the_least_rate_and_the_measured_delay(nodes_file):
    text = NODE + MEASURED + LINK
    plain = read_planned_nodes(nodes_file(NODE + MEASURED)).network().links
    assert plain["a", "b"] == LinkFacts(1e6, 0.02) and plain["b", "a"] == LinkFacts(2.5e6, 0.02)
    measured = read_planned_nodes(nodes_file(text + "one_way_ms = 3\nrate_mbps = 4"))
    assert measured.network().links["b", "a"] == LinkFacts(5e5, 0.003)
    slow = read_planned_nodes(nodes_file(text + "rate_mbps = 4")).network().links
    assert slow["a", "b"] == LinkFacts(5e5, 0.02)
