import pytest

from molink.control.broker.broker import Credentials, open_broker
from molink.control.broker.mosquitto import MosquittoBroker
from molink.errors import UserError


async def test_a_url_names_host_port_and_credentials(tmp_path):
    broker = open_broker("mqtts://us%40er:pa%3Ass@broker.example:1234", "", 0, tmp_path)
    assert (broker.address.host, broker.address.port, broker.address.tls) == (
        "broker.example",
        1234,
        True,
    )
    await broker.start()
    assert broker.coordinator == Credentials("us@er", "pa:ss")
    assert await broker.allow("n1", "ignored") == broker.coordinator
    await broker.forbid("n1")
    await broker.stop()


@pytest.mark.parametrize(("scheme", "port"), [("mqtt", 1883), ("mqtts", 8883)])
def test_ports_have_defaults(tmp_path, scheme, port):
    assert open_broker(f"{scheme}://u:p@[::1]", "", 0, tmp_path).address.port == port


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
def test_a_bad_url_is_one_sentence(tmp_path, url, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        open_broker(url, "", 0, tmp_path)
    assert "u:p" not in str(caught.value)


def test_mosquitto_is_preferred(tmp_path):
    assert isinstance(open_broker(None, "127.0.0.1", 0, tmp_path), MosquittoBroker)


def test_without_it_the_embedded_one_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr("molink.control.broker.broker.find_mosquitto", lambda: None)
    assert not isinstance(open_broker(None, "127.0.0.1", 0, tmp_path), MosquittoBroker)
    with pytest.raises(UserError, match="not installed"):
        open_broker("mosquitto", "127.0.0.1", 0, tmp_path)


def test_credentials_do_not_show_their_password():
    assert "secret" not in repr(Credentials("user", "secret"))
