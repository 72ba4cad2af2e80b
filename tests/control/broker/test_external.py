from itertools import islice, product

import pytest

from molink.control.addresses import Credentials, ServerTrust
from molink.control.broker.broker import open_broker
from molink.control.broker.embedded import EmbeddedBroker
from molink.errors import ControlError, JoinRefusedError, UserError

NODE, OTHER = "a" * 16, "b" * 16


async def test_a_url_names_host_port_and_credentials():
    broker = open_broker("mqtts://us%40er:pa%3Ass@broker.example:1234", "", 0)
    address = broker.address
    assert (address.host, address.port) == ("broker.example", 1234)
    assert address.tls == broker.trust == ServerTrust(), "of any authority, but for that host"
    await broker.start()
    assert broker.coordinator == Credentials("us@er", "pa:ss")
    await broker.forbid(NODE)
    await broker.stop()


def users_file(tmp_path, text):
    path = tmp_path / "users"
    path.write_text(text)
    path.chmod(0o600)
    return path


async def test_no_node_is_ever_given_the_coordinators_own_user():
    broker = open_broker("mqtt://operator:s3cret@h", "", 0)
    with pytest.raises(JoinRefusedError, match=f"has no user for this PC yet.* add {NODE}"):
        await broker.allow(NODE, "ignored")


async def test_a_node_has_the_user_of_its_id_as_soon_as_the_file_does(tmp_path):
    path = users_file(tmp_path, "# our club\n\n" + f"{OTHER}:an:other\n")
    broker = open_broker("mqtt://operator:s3cret@h", "", 0, users=path)
    assert await broker.allow(OTHER, "ignored") == Credentials(OTHER, "an:other")
    with pytest.raises(JoinRefusedError, match="has no user"):
        await broker.allow(NODE, "ignored")
    users_file(tmp_path, f"{NODE}:one\n")
    assert await broker.allow(NODE, "ignored") == Credentials(NODE, "one")
    users_file(tmp_path, "nonsense")
    with pytest.raises(ControlError, match="cannot read its list of users"):
        await broker.allow(NODE, "ignored")


async def test_a_list_of_users_has_room_for_every_node(tmp_path):
    nodes = ["".join(letters) for letters in islice(product("abcdefgh", repeat=4), 4096)]
    lines = [f"{node * 4}:{'p' * 100}\n" for node in nodes]
    path = users_file(tmp_path, "".join(lines))
    broker = open_broker("mqtt://operator:s3cret@h", "", 0, users=path)
    assert (await broker.allow("h" * 16, "ignored")).password == "p" * 100


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("attic:x", "Line 1 of .* is no user"),
        (f"{'a' * 16}:", "Line 1"),
        ("#" * (2**20 + 1), "is longer than 1048576 bytes"),
        (None, "There is no file"),
    ],
)
def test_a_list_of_users_that_cannot_be_read_is_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "users" if text is None else users_file(tmp_path, text)
    with pytest.raises(UserError, match=sentence):
        open_broker("mqtt://operator:s3cret@h", "", 0, users=path)


def test_a_list_of_users_that_everybody_may_read_is_refused(tmp_path):
    path = users_file(tmp_path, "")
    path.chmod(0o644)
    with pytest.raises(UserError, match="every user of this PC may read it"):
        open_broker("mqtt://operator:s3cret@h", "", 0, users=path)


@pytest.mark.parametrize(("scheme", "port"), [("mqtt", 1883), ("mqtts", 8883)])
def test_ports_have_defaults(scheme, port):
    assert open_broker(f"{scheme}://u:p@[::1]", "", 0).address.port == port


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://u:p@h", "does not begin with mqtt"),
        ("mqtt://h:1883", "no user and password"),
        ("mqtt://u@h", "no user and password"),
        ("mqtt://u:p@", "names no host"),
        ("mqtt://u:p@h:99999", "port"),
        ("mqtt://u:p@h:0", "port"),
        ("mqtt://u:p@h:x", "port"),
        ("mqtt://u:p@h/topic", "behind its port"),
        ("mqtt://u:p@[::1", "mqtt://USER"),
        ("rabbit", "no broker"),
    ],
)
def test_a_bad_url_is_one_sentence(url, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        open_broker(url, "", 0)
    assert "u:p" not in str(caught.value)


def test_the_embedded_one_is_had_by_its_name():
    assert isinstance(open_broker("embedded", "127.0.0.1", 0), EmbeddedBroker)


@pytest.mark.parametrize("choice", ["mosquitto", "auto", ""])
def test_a_broker_that_is_not_started_for_an_operator_is_told_what_to_do_instead(choice):
    with pytest.raises(UserError, match=r"leave --broker out.*or run a broker yourself.*mqtts://"):
        open_broker(choice, "127.0.0.1", 0)


def test_credentials_do_not_show_their_password():
    assert "secret" not in repr(Credentials("user", "secret"))
