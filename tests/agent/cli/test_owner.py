"""What an owner types and reads: with an agent that runs, without one, and before there was any."""

import asyncio
import json
import selectors
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from molink.errors import UserError
from molink_agent.cli import main
from molink_agent.daemon.agent_log import LOG_FILE
from molink_agent.data_files import MEMBERSHIP_FILE
from molink_agent.limits.limits import KEYS, OwnerLimits, plain_limits, with_value
from molink_agent.local_socket import SOCKET_NAME, answering
from molink_agent.page import orders
from molink_agent.probe.gpus import GpuProbe
from molink_agent.status_text import now_sentence, status_lines
from tests.agent.probe.fake_nvml import FakeCard, FakeNvml

GB = 2**30
DEVICE = {
    "id": "a" * 16,
    "name": "attic",
    "connected": True,
    "state": "serving",
    "reason": "",
    "layers": [0, 4],
    "model": "demo",
    "device": "cpu",
    "loaded": None,
    "paths": {"next": "direct", "coordinator": "relay"},
    "busy_share": 0.25,
    "lends": [{"device": "cpu", "lent_bytes": 8 * GB, "total_bytes": 16 * GB}],
}


def status_of(*devices):
    """As the agent answers."""
    limits = {"limits": plain_limits(OwnerLimits()), "limits_problem": ""}
    return {**devices[0], "cluster": "ftp://nobody", **limits, "devices": list(devices)}


STATUS = status_of(DEVICE)


@pytest.fixture
def home(tmp_path):
    (tmp_path / MEMBERSHIP_FILE).write_text("{}")
    return tmp_path


def run(home, *words: str):
    return CliRunner().invoke(main, [*words, "--data-dir", str(home)], catch_exceptions=False)


async def with_agent(home, *words: str):
    """The command's output, and what the agent was asked."""
    asked = []

    async def answer(question):
        asked.append(question["command"])
        return STATUS

    async with answering(home / SOCKET_NAME, answer):
        result = await asyncio.to_thread(run, home, *words)
    return result, asked


@pytest.mark.parametrize("command", ["status", "pause", "resume", "drain", "leave"])
def test_before_joining_each_command_says_how_to_join(tmp_path, command):
    with pytest.raises(UserError, match="molink agent join INVITE"):
        run(tmp_path, command)


@pytest.mark.parametrize("command", ["status", "pause", "resume", "drain"])
def test_without_an_agent_each_command_says_how_to_start_it(home, command):
    with pytest.raises(UserError, match="molink agent run"):
        run(home, command)


async def test_who_leaves_needs_no_agent_for_it(home):
    result, asked = await with_agent(home, "leave")
    assert asked == ["leave"] and "leaving" in result.output
    assert (home / MEMBERSHIP_FILE).exists(), "the agent forgets it when it has ended"
    left = await asyncio.to_thread(run, home, "leave")
    assert "left" in left.output
    assert not (home / MEMBERSHIP_FILE).exists()


async def test_an_agent_looks_at_a_limit_as_soon_as_it_is_set(home):
    result, asked = await with_agent(home, "set", "upload_mbps", "10")
    assert asked == ["look"]
    assert result.output.startswith("upload_mbps = 10 is saved") and "knows" in result.output
    later = await asyncio.to_thread(run, home, "set", "upload_mbps", "20")
    assert "when the agent starts" in later.output
    assert "upload_mbps = 20" in (home / "limits.toml").read_text()


@pytest.mark.parametrize("value", ["none", ""])
def test_a_limit_that_is_taken_back_is_told_so(home, value):
    run(home, "set", "upload_mbps", "20")
    assert run(home, "set", "upload_mbps", value).output.startswith("upload_mbps is taken back in")
    assert "\nupload_mbps" not in (home / "limits.toml").read_text()


@pytest.mark.parametrize("key", ["cache_ram_gb", "cache_disk_gb", "upload_mbps"])
def test_a_negative_limit_is_a_wrong_value_and_no_unknown_option(home, key):
    with pytest.raises(UserError, match=f"{key} must be a number .* -1 is out of bounds"):
        run(home, "set", key, "-1")


def test_help_of_set_shows_every_limit_with_a_value_that_is_taken(home):
    shown = CliRunner().invoke(main, ["set", "--help"]).output
    for key in KEYS:
        assert f"{key.name} " in shown
        with_value(OwnerLimits(), key.name, key.typed.strip('"'))


async def test_a_service_is_not_put_beside_an_agent_in_a_terminal(home, monkeypatch):
    monkeypatch.setenv("PATH", "")  # No systemctl: whatever it says is not the service.
    with pytest.raises(UserError, match="Ctrl-C"):
        await with_agent(home, "service", "install")


def test_a_service_of_an_agent_that_never_joined_would_do_nothing(tmp_path):
    with pytest.raises(UserError, match="molink agent join INVITE"):
        run(tmp_path, "service", "install")


def test_the_service_is_described_in_words(home, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert run(home, "service", "status").output.startswith("It is not installed: `molink agent")


async def test_status_for_programs_has_what_was_given(home):
    result, asked = await with_agent(home, "status", "--json")
    assert asked == ["status"]
    assert json.loads(result.output) == STATUS | {
        "given": None,
        "last_night": None,
        "model_layers": None,
    }


def test_status_says_what_is_lent_and_given():
    given = {"uptime_s": 720, "token_layers": 12345, "bytes_sent": 1_250_000}
    limits = plain_limits(
        with_value(with_value(OwnerLimits(), "hours", "18:00-02:00"), "direct", "no")
    )
    night = given | {"uptime_s": 7200}
    lines = list(status_lines(STATUS | {"given": given, "last_night": night, "limits": limits}))
    assert lines == [
        "attic (aaaaaaaaaaaaaaaa) in ftp://nobody",
        "state:   serving: layers 0 to 3 of demo, on cpu, busy 25% of the time",
        "links:   next direct, coordinator relay",
        "lends:   cpu 8.6 of 17.2 GB",
        "limits:  hours 18:00-02:00, direct no",
        "given:   12 min of serving, 12,345 tokens x layers, 1.2 MB sent",
        "         last night 2.0 h of serving, 12,345 tokens x layers, 1.2 MB sent",
    ]


def test_what_was_given_is_said_in_words_where_the_model_is_known():
    given = {"uptime_s": 720, "token_layers": 12_000, "bytes_sent": 0}
    lines = list(status_lines(STATUS | {"given": given, "model_layers": 9}))
    (line,) = [one for one in lines if one.startswith("given:")]
    assert "a share of answers that comes to 1,000 words" in line


def test_status_of_an_agent_that_has_just_started():
    status = status_of(DEVICE | {"connected": False, "lends": [], "paths": {}})
    lines = list(status_lines(status))
    assert lines[1] == "state:   " + now_sentence(status)
    assert "lends:   nothing yet" in lines
    assert lines[-1].startswith("limits:  none of your own")


def test_status_of_several_devices_has_a_part_for_each():
    further = {"id": "b" * 16, "name": "attic (2)", "device": "cuda:1", "paths": {}}
    idle = {"state": "standby", "layers": None}
    lines = list(status_lines(status_of(DEVICE, DEVICE | further | idle)))
    assert lines[1:] == [
        "cpu: attic (aaaaaaaaaaaaaaaa)",
        "  state:   serving: layers 0 to 3 of demo, on cpu, busy 25% of the time",
        "  links:   next direct, coordinator relay",
        "  lends:   cpu 8.6 of 17.2 GB",
        "cuda:1: attic (2) (bbbbbbbbbbbbbbbb)",
        "  state:   standby: ready, until the coordinator needs it",
        "  lends:   cpu 8.6 of 17.2 GB",
        lines[-1],
    ]


def test_status_says_what_lies_in_memory_that_is_lent_and_why_it_is_no_more():
    lenders = [
        {"device": "cpu", "lendable_bytes": 4e9, "held_bytes": 1e9, "why_less": ""},
        {"device": "cuda:1", "lendable_bytes": 0, "held_bytes": 0, "why_less": "A game draws."},
    ]
    lines = [*status_lines(status_of(DEVICE) | {"kv_lenders": lenders})]
    assert "KV lent: 1.0 GB of 4.0 GB in main memory" in lines
    assert "KV lent: 0.0 GB of 0.0 GB in cuda:1; A game draws." in lines


@pytest.mark.parametrize("value", ["60000", "-1", "nan"])
def test_more_memory_to_lend_than_the_pc_has_is_refused_and_nothing_is_written(home, value):
    with pytest.raises(UserError, match="lend_ram_gb"):
        run(home, "set", "lend_ram_gb", value)
    assert not (home / "limits.toml").exists()
    run(home, "set", "lend_ram_gb", "0.5")
    assert "\nlend_ram_gb = 0.5\n" in (home / "limits.toml").read_text()


def test_a_log_that_is_followed_goes_on(tmp_path):
    log = tmp_path / LOG_FILE
    log.write_text("first\n")
    command = [sys.executable, "-m", "molink.cli.main", "agent", "logs", "-f", "--lines", "1"]
    program = subprocess.Popen(
        [*command, "--data-dir", str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout.readline() == "first\n"
        until = time.monotonic() + 30
        shown = ""
        with selectors.DefaultSelector() as waiting:
            waiting.register(program.stdout, selectors.EVENT_READ)
            while not shown and time.monotonic() < until:  # Until it looks, what is added is old.
                with log.open("a") as file:
                    file.write("later \x1b[31m\n")
                if waiting.select(0.5):
                    shown = program.stdout.readline()
        assert shown.startswith("later") and "\x1b" not in shown
    finally:
        program.terminate()
        program.wait()
        program.stdout.close()


@pytest.mark.parametrize(
    ("cards", "key", "value", "says"),
    [
        (0, "lend_gpu_gb", "4", "this PC has no card"),
        (1, "lend_gpu_gb", "4", r"uses all that there are \(cuda:0\)"),
        (2, "lend_gpu_gb", "50", "cuda:1 has 12.88 GB: set less"),
        (2, "device", "cuda:0,cuda:1", r"uses all that there are \(cuda:0, cuda:1\)"),
    ],
)
def test_a_card_that_cannot_lend_so_much_is_refused_and_nothing_is_changed(
    home, monkeypatch, cards, key, value, says
):
    driver = FakeNvml([FakeCard() for _ in range(cards)], missing=not cards)
    monkeypatch.setattr(orders, "GpuProbe", lambda **options: GpuProbe(driver, **options))
    if key == "device":
        run(home, "set", "lend_gpu_gb", "4")
    before = (home / "limits.toml").read_text() if key == "device" else None
    with pytest.raises(UserError, match=says):
        run(home, "set", key, value)
    assert before is None or (home / "limits.toml").read_text() == before
    run(home, "set", "threads", "2")
