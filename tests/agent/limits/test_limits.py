"""What may be said in limits.toml, and what is refused with which sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.errors import UserError
from molink_agent.limits.limits import KEYS, OwnerLimits, limits_of, with_value
from molink_agent.limits.limits_file import LIMITS_FILE, LimitsFile, limits_text
from molink_scheduler.units import GB

FULL = """
vram_gb = 6
memory_gb = 8.5
upload_mbps = 10
disk_gb = 50
hours = ["mon-fri 18:00-02:00", "sat-sun 00:00-24:00"]
only_when_idle_minutes = 10
pause_on_battery = false
threads = 4
device = "cuda:1"
direct = false
"""

VALUES = {
    "vram_gb": st.floats(0, 4096).map(str),
    "memory_gb": st.integers(0, 65536).map(str),
    "upload_mbps": st.floats(0.1, 100_000).map(str),
    "disk_gb": st.integers(0, 1_000_000).map(str),
    "hours": st.sampled_from(["18:00-02:00", "sat-sun 10:00-23:00, 01:00-02:00", "none"]),
    "only_when_idle_minutes": st.floats(1, 1440).map(str),
    "pause_on_battery": st.sampled_from(["yes", "no", "true", "off"]),
    "pause_on_game": st.sampled_from(["yes", "no", "true", "off"]),
    "threads": st.integers(1, 1024).map(str),
    "device": st.sampled_from(["auto", "cpu", "cuda", "cuda:3", "none"]),
    "direct": st.sampled_from(["yes", "no"]),
}


def written(tmp_path, text: str) -> LimitsFile:
    (tmp_path / LIMITS_FILE).write_text(text, encoding="utf-8")
    return LimitsFile(tmp_path)


def test_without_a_file_the_defaults_hold(tmp_path):
    assert LimitsFile(tmp_path).read() == OwnerLimits()


def test_everything_can_be_said(tmp_path):
    limits = written(tmp_path, FULL).read()
    assert (limits.vram_bytes, limits.memory_bytes, limits.threads) == (6 * GB, 8_500_000_000, 4)
    assert (limits.device, limits.direct, limits.pause_on_battery) == ("cuda:1", False, False)
    assert [entry.text for entry in limits.hours] == ["mon-fri 18:00-02:00", "sat-sun 00:00-24:00"]


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_what_is_written_is_read_back(values):
    import tomllib

    limits = OwnerLimits()
    for name, text in values.items():
        limits = with_value(limits, name, text)
    assert limits_of(tomllib.loads(limits_text(limits)), "file") == limits


def test_the_file_of_no_limits_shows_every_key_and_sets_none():
    import tomllib

    text = limits_text(OwnerLimits())
    assert tomllib.loads(text) == {}
    shown = "".join(line.removeprefix("# ") + "\n" for line in text.splitlines() if " = " in line)
    assert list(tomllib.loads(shown)) == [key.name for key in KEYS]
    limits_of(tomllib.loads(shown), "file")


@pytest.mark.parametrize(
    "text, says",
    [
        ("vram_bg = 6", "no limit called 'vram_bg': did you mean vram_gb?"),
        ("colour = 6", "this version knows vram_gb, memory_gb"),
        ("[limits]\nvram_gb = 6", "no limit called 'limits'"),
        ('vram_gb = "lots"', "vram_gb must be a number of GB from 0 to 4096; 'lots' is not"),
        ("vram_gb = true", "vram_gb must be a number"),
        ("vram_gb = -1", "-1 is out of bounds"),
        ("vram_gb = nan", "nan is out of bounds"),
        ("upload_mbps = 0", "upload_mbps must be a number of Mbit/s from 0.1"),
        ("threads = 1.5", "threads must be a whole number"),
        ("pause_on_battery = 1", "pause_on_battery must be true or false"),
        ('hours = "6pm-2am"', "hours must be times like"),
        ("hours = []", "an empty list leaves no hour to give"),
        ("hours = [18]", "neither hours nor a list"),
        ("only_when_idle_minutes = 0", "from 1 to 1440"),
        ('device = "gpu"', "device must be auto, cpu or cuda:N, several with commas"),
        ('device = "cpu,gpu"', "'cpu,gpu' is no device"),
        ('device = "auto,cpu"', "'auto,cpu' is no device"),
        ('device = "cuda,cuda:0"', "'cuda,cuda:0' names a card twice"),
        ('device = "cpu' + ",cpu" * 16 + '"', "17 devices are more than 16"),
        ("device = 0", "device must be auto"),
        ("vram_gb = 6 GB", "is not valid TOML"),
        ("# " + "x" * 70_000, "is too large"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, text, says):
    with pytest.raises(UserError, match=LIMITS_FILE) as caught:
        written(tmp_path, text).read()
    assert says in str(caught.value)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / LIMITS_FILE).write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        LimitsFile(tmp_path).read()


def test_set_changes_one_key_and_keeps_the_others(tmp_path):
    file = written(tmp_path, FULL)
    assert file.set("threads", "2").threads == 2
    again = LimitsFile(tmp_path).read()
    assert (again.threads, again.vram_bytes) == (2, 6 * GB)
    assert file.set("vram_gb", "none").vram_bytes is None
    assert list(tmp_path.iterdir()) == [tmp_path / LIMITS_FILE]


def test_a_mistake_in_set_changes_nothing(tmp_path):
    file = written(tmp_path, FULL)
    with pytest.raises(UserError, match="molink agent set: threads must be"):
        file.set("threads", "all")
    assert (tmp_path / LIMITS_FILE).read_text(encoding="utf-8") == FULL


def test_a_directory_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be"):
        LimitsFile(tmp_path / "file").set("threads", "2")


def test_an_edit_is_noticed_once(tmp_path):
    file = written(tmp_path, "threads = 2")
    file.read()
    assert not file.reload()
    written(tmp_path, "threads = 16")
    assert file.reload()
    assert file.limits.threads == 16
    assert not file.reload()


def test_a_broken_edit_changes_nothing_and_is_told(tmp_path):
    file = written(tmp_path, "threads = 2")
    file.read()
    written(tmp_path, "threads = lots")
    assert not file.reload()
    assert file.limits.threads == 2
    assert "not valid TOML" in file.problem
    written(tmp_path, "threads = 2 # as before")
    assert not file.reload()
    assert file.problem == ""


def test_a_file_that_is_removed_gives_the_defaults_back(tmp_path):
    file = written(tmp_path, "threads = 2")
    file.read()
    file.path.unlink()
    assert file.reload()
    assert file.limits == OwnerLimits()


@pytest.mark.parametrize("kept", [0, 1, 100, 400, 900])
def test_a_file_that_was_cut_lends_nothing(tmp_path, kept):
    """Without the lines that are missing more would be lent."""
    text = limits_text(OwnerLimits(memory_bytes=3 * GB, cache_disk_bytes=2 * GB))
    assert text[kept - 1] != "\n" or not kept
    with pytest.raises(UserError, match=r"its end is missing|not valid TOML"):
        written(tmp_path, text[:kept]).read()
