"""Invites survive copying, or say what happened to them; they never show their secret."""

import base64
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.control.messages.invites import PREFIX, Invite, InviteSecret, checked_url
from molink.errors import UserError

URL_SAFE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

hosts = st.sampled_from(["a", "10.0.0.1", "ring.example.org", "[2001:db8::1]", "h" * 150])
ports = st.one_of(st.just(""), st.integers(1, 65535).map(":{}".format))
urls = st.builds(
    "https://{}{}{}".format,
    hosts,
    ports,
    st.sampled_from(["", "/molink"]),
)
invites = st.builds(
    Invite,
    urls,
    st.binary(min_size=8, max_size=8).map(bytes.hex),
    st.binary(min_size=16, max_size=16).map(InviteSecret),
    st.binary(min_size=32, max_size=32),
)


@given(invites)
def test_an_invite_comes_back_as_it_was(invite):
    assert Invite.parse(invite.text) == invite


@given(invites, st.data())
def test_white_space_and_line_breaks_do_not_matter(invite, data):
    at = data.draw(st.integers(0, len(invite.text)))
    assert Invite.parse(f"  {invite.text[:at]}\n {invite.text[at:]}\n") == invite


@given(invites)
def test_the_whole_command_may_be_pasted(invite):
    assert Invite.parse(f"molink agent join {invite.text}\n") == invite
    assert Invite.parse(f"  $ molink agent join {invite.text} --name anna") == invite


@given(invites, st.data())
def test_every_truncation_is_told_as_one(invite, data):
    length = data.draw(st.integers(0, len(invite.text) - 1))
    expected = "end of this invite is missing" if length >= len(PREFIX) else "not an invite"
    with pytest.raises(UserError, match=expected):
        Invite.parse(invite.text[:length])


@given(invites, st.data())
def test_every_change_of_a_character_is_refused(invite, data):
    text = invite.text
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(URL_SAFE + ".+/= é~").filter(lambda one: one != text[at]))
    with pytest.raises(UserError):
        Invite.parse(text[:at] + other + text[at + 1 :])


@given(invites, st.text(URL_SAFE, min_size=1, max_size=5))
def test_what_was_added_at_the_end_is_refused(invite, more):
    with pytest.raises(UserError, match="altered"):
        Invite.parse(invite.text + more)


@given(st.text(max_size=300))
def test_any_other_text_is_refused_with_a_sentence(text):
    with pytest.raises(UserError, match="invite"):
        Invite.parse(text)


@given(st.binary(max_size=100))
def test_any_other_bytes_behind_the_prefix_are_refused(payload):
    with pytest.raises(UserError, match="invite"):
        Invite.parse(PREFIX + base64.urlsafe_b64encode(payload).decode().rstrip("="))


def test_another_format_is_told_as_one():
    with pytest.raises(UserError, match="format 2"):
        Invite.parse("molink2-AAAA")


def test_an_invite_from_before_agents_had_a_port_is_told_as_one():
    raw = bytearray(base64.urlsafe_b64decode(invite_text()[len(PREFIX) :] + "=="))
    raw[1] = 0
    raw[-4:] = zlib.crc32(raw[:-4]).to_bytes(4, "big")
    with pytest.raises(UserError, match="is of an older MoLink: ask whoever runs the cluster"):
        Invite.parse(PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("="))


def invite_text() -> str:
    return Invite.make("https://10.0.0.1:8003", bytes(32)).text


def test_an_invite_is_short():
    assert len(Invite.make("https://192.168.178.20:8003", bytes(32)).text) <= 120


@given(invites)
def test_an_invite_never_shows_its_secret(invite):
    secret = invite.secret.value
    for shown in (repr(invite), str(invite), f"{invite}", repr(invite.secret), str(invite.secret)):
        assert secret.hex() not in shown and repr(secret) not in shown
        assert invite.text not in shown


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:8000",
        "http://host:8000",
        "https://",
        "https://user@host",
        "https://host/?a",
        "https://h\n",
        "https://" + 200 * "h",
        "https://höst",
    ],
)
def test_an_address_that_cannot_be_one_is_refused(url):
    with pytest.raises(UserError, match="no address of a coordinator"):
        checked_url(url)


def test_slashes_at_the_end_of_an_address_do_not_matter():
    assert checked_url("https://ring.example.org/molink//") == "https://ring.example.org/molink"
