"""Bytes that editors, shells and programs write are text, or their encoding is named."""

from codecs import BOM_UTF8

import pytest

from molink.utf8 import utf8_text

TEXT = '{"prompt": "Gr\u00fcezi"}'


def test_byte_order_marks_are_passed_over():
    assert utf8_text(TEXT.encode()) == utf8_text(bytearray(BOM_UTF8 + TEXT.encode())) == TEXT
    assert utf8_text(BOM_UTF8 * 2 + b"x") == "x", "an editor may add one to a file that has one"
    assert utf8_text(b"") == utf8_text(BOM_UTF8) == ""


@pytest.mark.parametrize(
    ("encoding", "named"),
    [
        ("utf-16", "UTF-16"),
        ("utf-16-le", "UTF-16"),
        ("utf-16-be", "UTF-16"),
        ("latin-1", "Latin-1"),
        ("cp1252", "Latin-1"),
    ],
)
def test_another_encoding_is_named(encoding, named):
    with pytest.raises(ValueError, match=f"it is {named}.*, not UTF-8"):
        utf8_text(TEXT.encode(encoding))


def test_binary_data_is_named():
    with pytest.raises(ValueError, match="it is binary data, not UTF-8"):
        utf8_text(b"GGUF\xff\x00\x03")
