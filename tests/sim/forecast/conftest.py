"""Sets of PCs in files."""

import pytest

THREE = """
[[nodes]]
name = "anna"
gpu = "rtx4090"
upload_mbps = 100
download_mbps = 100
[[nodes]]
name = "ben"
gpu = "rtx3060"
upload_mbps = 40
download_mbps = 200
one_way_ms = 10
[[nodes]]
name = "cleo"
memory_gib = 24
bandwidth_gb_per_s = 936
tflops = 71
upload_mbps = 100
download_mbps = 100
[[links]]
between = ["anna", "ben"]
one_way_ms = 7
"""


@pytest.fixture
def nodes_file(tmp_path):
    """Writes a file of PCs; without text, three of them."""

    def write(text=THREE):
        path = tmp_path / "nodes.toml"
        path.write_text(text)
        return path

    return write
