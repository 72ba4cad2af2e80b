"""A file of hosts: understood, or refused with one sentence that says what to do."""

import pytest
from click.testing import CliRunner

from molink.cli.main import cli
from molink.config.link_schedule import LinkSchedule
from molink.config.ring_hosts import RingHosts, StageAddress
from molink.config.settings import ServeSettings
from molink.errors import UserError

TWO = """
coordinator_address = "10.0.0.1"

[[stage]]
address = "10.0.0.2"
command = ["ssh", "pc2"]

[[stage]]
address = "pc3.example"
"""


def test_a_file_names_every_stage_in_order(tmp_path):
    file = tmp_path / "hosts.toml"
    file.write_text(TWO)
    hosts = RingHosts.read(str(file))
    assert hosts.stages == (StageAddress("10.0.0.2", ("ssh", "pc2")), StageAddress("pc3.example"))
    assert hosts.coordinator_address == "10.0.0.1"


def test_text_is_what_is_read_back():
    hosts = RingHosts((StageAddress("127.0.0.2", ("a b", 'c"d\\')), StageAddress("127.0.0.3")))
    assert RingHosts.from_text(hosts.text, "file") == hosts


def test_without_a_file_everything_is_here():
    hosts = RingHosts.local(2)
    assert [stage.address for stage in hosts.stages] == ["127.0.0.1", "127.0.0.1"]
    assert hosts.coordinator_address == "127.0.0.1"


@pytest.mark.parametrize(
    "text, says",
    [
        ("stage = [", "valid TOML"),
        ("", r"\[\[stage\]\]"),
        ("stage = []", r"\[\[stage\]\]"),
        ('stage = "pc2"', r"\[\[stage\]\]"),
        ("stage = [3]", "stage 0 must be a table"),
        ('[[stages]]\naddress = "pc"', "unknown key 'stages'"),
        ('[[stage]]\nadress = "pc"', "stage 0 has an unknown key 'adress'"),
        ('[[stage]]\naddress = "pc"\n[[stage]]\ncommand = ["ssh"]', "stage 1 lacks an address"),
        ('[[stage]]\naddress = "pc"\ncommand = "ssh pc"', "list of strings"),
        ('[[stage]]\naddress = "pc"\ncommand = ["ssh", 3]', "list of strings"),
        ("[[stage]]\naddress = 3", "got 3"),
        ('coordinator_address = 3\n[[stage]]\naddress = "pc"', "got 3"),
    ],
)
def test_a_file_that_says_something_else_is_refused(text, says):
    with pytest.raises(UserError, match=says):
        RingHosts.from_text(text, "file")


@pytest.mark.parametrize(
    "address",
    ["", "10.0.0.300", "10.0.0", "0.0.0.0", "224.0.0.1", "::1", "a b", "-a", "a..b", "pc:80", "*"],
)
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(UserError, match="addresses and host names"):
        StageAddress(address)


def test_a_coordinator_out_of_the_tails_reach_is_refused():
    with pytest.raises(UserError, match="coordinator_address"):
        RingHosts((StageAddress("10.0.0.2"),))
    RingHosts((StageAddress("127.0.0.2"),))
    RingHosts((StageAddress("pc2"),))


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        RingHosts.read(str(tmp_path / "none.toml"))
    with pytest.raises(UserError, match="directory"):
        RingHosts.read(str(tmp_path))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="UTF-8"):
        RingHosts.read(str(tmp_path / "bytes.toml"))


def test_hosts_must_fit_the_other_settings():
    with pytest.raises(UserError, match="2 stages for 3 nodes"):
        ServeSettings("demo", nodes=3, hosts=RingHosts.local(2))
    with pytest.raises(UserError, match="--link cannot be combined"):
        link = LinkSchedule.parse("100:30")
        ServeSettings("demo", nodes=2, hosts=RingHosts.local(2), link=link)


def test_the_help_says_that_links_are_not_encrypted():
    help_text = " ".join(CliRunner().invoke(cli, ["serve", "--help"]).output.split())
    assert "Links are not encrypted yet: only within a trusted network." in help_text
