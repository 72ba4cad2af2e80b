"""Files of PCs, good and bad."""

import pytest

from molink.errors import UserError
from molink_sim.forecast import read_nodes


def test_links_take_the_smaller_rate_and_the_measured_delay(nodes_file):
    nodes = read_nodes(nodes_file())
    anna, ben, cleo = nodes.nodes
    assert nodes.link(anna, ben).mbps == 100 and nodes.link(ben, anna).mbps == 40
    assert nodes.link(ben, anna).one_way_s == pytest.approx(0.007)
    assert nodes.link(ben, cleo).one_way_s == pytest.approx(0.025)


NODE = '[[nodes]]\nname = "a"\ngpu = "rtx4090"\nupload_mbps = 10\ndownload_mbps = 10\n'


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("", "has 0 PCs"),
        ("x = ", "cannot read"),
        ("nodes = 3", r"write \[\[nodes\]\]"),
        (NODE + NODE, "same name"),
        (NODE.replace("rtx4090", "voodoo"), "no GPU 'voodoo' is known"),
        (NODE.replace("upload_mbps = 10", "upload_mbps = 0"), "upload_mbps 0: give a number above"),
        (NODE.replace("upload_mbps = 10", 'upload_mbps = "x"'), "upload_mbps 'x'"),
        (NODE.replace("upload_mbps = 10\n", ""), "has no upload_mbps"),
        (NODE.replace('gpu = "rtx4090"\n', ""), "has no memory_gib"),
        (NODE + "one_way_ms = -1", "one_way_ms -1"),
        (NODE + "uplaod = 1", "uplaod, which means nothing"),
        (NODE.replace('"a"', "3"), "has the name 3"),
        (NODE + '[[links]]\nbetween = ["a", "b"]\none_way_ms = 1', "of its PCs"),
    ],
)
def test_one_sentence_for_each_mistake(nodes_file, text, sentence):
    with pytest.raises(UserError, match=sentence):
        read_nodes(nodes_file(text))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        read_nodes(tmp_path / "none.toml")
