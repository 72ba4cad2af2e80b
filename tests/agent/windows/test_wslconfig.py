"""Whatever an owner has in .wslconfig: it is kept, WSL sees mirrored, and removing restores it."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from molink_agent.windows.wslconfig import (
    KEPT,
    OURS,
    SETTING,
    TextFile,
    is_mirrored,
    with_mirrored,
    without_ours,
)

LINES = st.sampled_from(
    [
        "",
        "[wsl2]",
        " [WSL2]  # mine",
        "[experimental]",
        "[wsl2",
        "memory=8GB",
        "networkingMode=NAT",
        "NetworkingMode = mirrored",
        'networkingmode="Mirrored" # yes',
        "# networkingMode=mirrored",
        "  kernel=C:\\\\temp\\\\k \\",
        "networkingMode=bridged\\",
        "networkingMode=none # because\\",
        "swap=0\\\\",
        "ä\u2028networkingMode=x",
    ]
)

CONTINUED = re.compile(r"(?m)^([ \t]*\w+[ \t]*=(?:[^#\n\\]|\\[^\n])*)\\\n")
"""A setting without a comment that ends in a backslash."""


@st.composite
def files(draw):
    end = draw(st.sampled_from(["\n", "\r\n"]))
    return "".join(line + end for line in draw(st.lists(LINES, max_size=12)))


def settings_of(text: str) -> dict[tuple[str, str], str]:
    """What WSL makes of a file, written without looking at ours: the first of a name counts."""
    text, joined = text.replace("\r\n", "\n"), ""
    while joined != text:
        joined, text = text, CONTINUED.sub(r"\1 ", text)
    section, found = "", {}
    for line in joined.split("\n"):
        if header := re.fullmatch(r"[ \t]*\[(\w+)\][ \t]*(#.*)?", line):
            section = header[1].lower()
        elif setting := re.match(r"[ \t]*(\w+)[ \t]*=(.*)", line):
            found.setdefault((section, setting[1].lower()), setting[2].partition("#")[0].strip())
    return found


@given(files())
def test_wsl_sees_mirrored_and_everything_else_as_before(text):
    before, after = settings_of(text), settings_of(with_mirrored(text))
    mode = after.pop(("wsl2", "networkingmode"))
    assert re.match('"?mirrored', mode, re.IGNORECASE)
    before.pop(("wsl2", "networkingmode"), None)
    assert after == before
    assert is_mirrored(with_mirrored(text))


@given(files())
def test_no_line_is_lost_and_a_second_time_changes_nothing(text):
    once = with_mirrored(text)
    assert with_mirrored(once) == once
    kept = [line.removeprefix(KEPT) for line in once.splitlines()]
    rest = iter(kept)
    assert all(line in rest for line in text.splitlines())


@given(files())
@example("[wsl2]\nmemory=1GB\n")
@example("networkingMode=NAT\n")
def test_removing_restores_the_very_text(text):
    assert without_ours(with_mirrored(text)) == text
    assert without_ours(text) == text


def test_only_the_end_of_the_last_line_may_be_added():
    assert with_mirrored("[wsl2]\nmemory=8GB").endswith(f"{SETTING}\nmemory=8GB\n")
    assert without_ours(with_mirrored("[wsl2]\nmemory=8GB")) == "[wsl2]\nmemory=8GB\n"


def test_a_new_file_has_the_line_ends_of_windows():
    lines = [OURS, "[wsl2]", OURS, SETTING]
    assert with_mirrored("") == "".join(line + "\r\n" for line in lines)


def test_what_the_owner_has_changed_since_stays():
    grown = with_mirrored("") + "memory=8GB\r\n"
    assert without_ours(grown) == "[wsl2]\r\nmemory=8GB\r\n"
    edited = with_mirrored("[wsl2]\n").replace(SETTING, "networkingMode=none")
    assert without_ours(edited) == "[wsl2]\nnetworkingMode=none\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_the_file_keeps_its_encoding(tmp_path, encoding):
    path = tmp_path / ".wslconfig"
    text = "[wsl2]\r\n# für mich\r\n"
    path.write_bytes(text.encode(encoding))
    file = TextFile.read(path)
    file.write(with_mirrored(file.text))
    assert path.read_bytes() == with_mirrored(text).encode(encoding)
    again = TextFile.read(path)
    again.write(without_ours(again.text))
    assert path.read_bytes() == text.encode(encoding)
    assert [entry.name for entry in tmp_path.iterdir()] == [".wslconfig"]
