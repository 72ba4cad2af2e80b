"""Key pairs, node ids, and the files that hold them."""

import base64
import hashlib
import os

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from molink.control.identity import (
    KeyPair,
    key_from_z85,
    key_to_z85,
    load_or_make_key,
    node_id_of,
)
from molink.control.private_file import PRIVATE_BYTES_MAX, read_private, write_private
from molink.errors import UserError


@given(st.binary(min_size=32, max_size=32))
def test_a_key_comes_back_from_z85(key):
    assert key_from_z85(key_to_z85(key)) == key


@pytest.mark.parametrize("text", ["", "a" * 39, "a" * 41, "~" * 40, "#" * 40, "ä" * 40, "a" * 45])
def test_anything_else_is_no_key(text):
    with pytest.raises(ValueError):
        key_from_z85(text)


def test_a_pair_is_what_zeromq_would_have_made():
    pair = KeyPair.generate()
    assert zmq.curve_public(pair.secret_z85.encode()).decode() == pair.public_z85


def test_a_pc_s_devices_have_keys_of_their_own_that_stay_the_same():
    pair = KeyPair.of_secret(bytes(range(32)))
    pairs = [pair.for_device(number) for number in range(16)]
    assert pairs[0] == pair and len({one.node_id for one in pairs}) == 16
    assert pairs == [KeyPair.of_secret(bytes(range(32))).for_device(number) for number in range(16)]
    assert pair.for_device(1) != KeyPair.of_secret(bytes(32)).for_device(1)


def test_the_node_id_is_a_hash_of_the_public_key():
    public = bytes(range(32))
    digest = hashlib.blake2b(public, digest_size=10).digest()
    assert node_id_of(public) == base64.b32encode(digest).decode().lower()
    assert len(node_id_of(public)) == 16


def test_halves_of_two_pairs_are_refused():
    with pytest.raises(ValueError):
        KeyPair(KeyPair.generate().public, KeyPair.generate().secret)


def test_the_secret_half_is_never_shown():
    pair = KeyPair.generate()
    assert repr(pair.secret) not in repr(pair) and pair.secret_z85 not in str(pair)


def test_a_key_file_is_made_once_and_private(tmp_path):
    path = tmp_path / "folder" / "identity.json"
    pair = load_or_make_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_or_make_key(path) == pair
    assert [file.name for file in path.parent.iterdir()] == ["identity.json"]


def test_a_file_that_everybody_may_read_is_refused_and_one_of_a_group_is_not(tmp_path):
    path = tmp_path / "identity.json"
    pair = load_or_make_key(path)
    path.chmod(0o660)
    assert load_or_make_key(path) == pair
    path.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        load_or_make_key(path)


@pytest.mark.parametrize("text", ["", "{}", "[]", "no json", '{"public_key": 1, "secret_key": 2}'])
def test_a_file_that_is_no_key_is_refused(tmp_path, text):
    path = tmp_path / "identity.json"
    write_private(path, text)
    with pytest.raises(UserError, match="no key file any more"):
        load_or_make_key(path)


def test_what_cannot_be_read_or_written_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_private(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        write_private(tmp_path / "file" / "identity.json", "text")
    write_private(tmp_path / "large", "x" * (PRIVATE_BYTES_MAX + 1))
    with pytest.raises(UserError, match="longer than 65536 bytes"):
        read_private(tmp_path / "large")


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "identity.json"
    write_private(path, "old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        write_private(path, "new")
    assert read_private(path) == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["identity.json"]
