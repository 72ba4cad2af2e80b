"""What a forecast takes of a file of PCs."""

import pytest

from molink.errors import UserError
from molink_sim.forecast import read_nodes
from molink_sim.forecast.nodes import link_of


def test_links_take_the_smaller_rate_and_the_measured_delay(nodes_file):
    nodes = read_nodes(nodes_file())
    anna, ben, cleo = nodes.nodes
    assert link_of(nodes, anna, ben).mbps == 100 and link_of(nodes, ben, anna).mbps == 40
    assert link_of(nodes, ben, anna).one_way_s == pytest.approx(0.007)
    assert link_of(nodes, ben, cleo).one_way_s == pytest.approx(0.025)


MEASURED = (
    '[[nodes]]\nname = "a"\nlends_gib = 8\ndecode_fixed_ms = 2\ndecode_row_ms = 0.1\n'
    "prefill_row_ms = 0.05\nupload_mbps = 10\ndownload_mbps = 10\n"
)


def test_each_pc_needs_a_device_whatever_was_measured(nodes_file):
    with pytest.raises(UserError, match=r"a in .* has measured times but no device"):
        read_nodes(nodes_file(MEASURED))
    (anna,) = read_nodes(nodes_file(MEASURED + 'gpu = "rtx4090"')).nodes
    assert anna.device.name == "rtx4090" and anna.lent_bytes == 8 * 2**30
