"""What a bare machine lacks: all that MoLink is locked to, but torch and what comes with it."""

from click.testing import CliRunner

from tools.experiments.cards import pack_wheels
from tools.experiments.cards.pack_wheels import THERE, missing, needed


def test_a_bare_machine_lacks_everything_but_torch():
    wanted = needed()
    assert {"transformers", "pyzmq", "llguidance", "pytest-asyncio", "nvidia-ml-py"} <= set(wanted)
    assert not set(THERE) & set(wanted)
    assert missing(wanted, {}) == wanted


def test_what_is_there_and_new_enough_stays():
    wanted = needed()
    there = dict(wanted) | {"transformers": "5.17.0"}
    assert missing(wanted, there) == {"transformers": wanted["transformers"]}
    there |= {"transformers": "99.0", "psutil": "7.0.0"}
    assert missing(wanted, there) == {}, "another version that MoLink takes"
    assert missing(wanted, there | {"tokenizers": "0.1"}) == {"tokenizers": wanted["tokenizers"]}


def test_the_list_is_printed_without_a_network(tmp_path):
    there = tmp_path / "there.txt"
    there.write_text("".join(f"{name}=={version}\n" for name, version in needed().items()))
    there.write_text(there.read_text().replace("pyzmq==", "# pyzmq "))
    arguments = ["--out", str(tmp_path), "--there", str(there), "--list"]
    result = CliRunner().invoke(pack_wheels.main, arguments)
    assert result.output.splitlines() == [f"pyzmq=={needed()['pyzmq']}"]
