"""Which desktop is asked, and how its answer is read."""

from dataclasses import dataclass, field

import pytest

from molink_agent.probe.input_idle import (
    InputIdle,
    ask_input_idle,
    input_sources,
    read_dbus_milliseconds,
    read_logind,
    read_milliseconds,
)

X11 = {"DISPLAY": ":0", "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1000/bus"}
WAYLAND = {**X11, "WAYLAND_DISPLAY": "wayland-0"}


@dataclass
class FakePrograms:
    """Answers by program name; whatever is not here is not installed."""

    answers: dict[str, str]
    asked: list[str] = field(default_factory=list)

    async def ask(self, *command: str, timeout_s: float = 0) -> str | None:
        self.asked.append(command[0])
        return self.answers.get(command[0])


async def idle(answers: dict[str, str], environment: dict[str, str], *, wsl: bool = False):
    sources = input_sources(environment, wsl=wsl)
    return await ask_input_idle(sources, FakePrograms(answers).ask)


def names(environment: dict[str, str]) -> list[str]:
    return [source.name for source in input_sources(environment, wsl=False)]


async def test_gnome_is_asked_first():
    answers = {"gdbus": "(uint64 61500,)\n", "xprintidle": "5"}
    assert await idle(answers, X11) == InputIdle(61.5, "GNOME")


async def test_the_next_one_is_asked_when_one_does_not_know():
    answers = {"gdbus": "Error", "xprintidle": "1500\n"}
    assert await idle(answers, X11) == InputIdle(1.5, "X11")


async def test_on_wayland_x11_is_not_believed():
    assert (await idle({"xprintidle": "999000"}, WAYLAND)).seconds is None
    assert names(WAYLAND) == ["GNOME", "GNOME", "logind"]


def test_without_a_desktop_logind_remains():
    assert names({}) == ["logind"]


async def test_under_wsl_only_windows_knows():
    answers = {"powershell.exe": "2500\r\n", "busctl": "b true\nt 5\n", "gdbus": "(uint64 1,)"}
    assert await idle(answers, X11, wsl=True) == InputIdle(2.5, "Windows")
    assert (await idle({"busctl": "b true\nt 5\n"}, X11, wsl=True)).seconds is None


async def test_nobody_knows():
    assert await idle({}, X11) == InputIdle(None)


async def test_a_counter_that_was_never_set_is_no_answer():
    assert (await idle({"xprintidle": "4294967295000"}, X11)).seconds is None


@pytest.mark.parametrize("said", ["", "-5", "1.5", "²", "error 7"])
def test_only_a_number_is_a_number(said):
    assert read_milliseconds(said) is None


def test_both_ways_of_dbus_are_read():
    sent = "method return time=1 sender=:1.24 -> destination=:1.9\n   uint64 7000\n"
    assert read_dbus_milliseconds(sent) == 7
    assert read_dbus_milliseconds("(uint64 7000,)\n") == 7
    assert read_dbus_milliseconds("(int32 7000,)\n") is None


def test_logind_says_since_when():
    assert read_logind("b true\nt 40000000\n", monotonic_s=100) == 60
    assert read_logind("b false\nt 40000000\n", monotonic_s=100) == 0
    assert read_logind("b true\nt 200000000\n", monotonic_s=100) == 0
    assert read_logind("Failed to connect to bus", monotonic_s=100) is None


async def test_the_x11_process_ends_without_a_display():
    sources = [one for one in input_sources(X11, wsl=False) if "x11_idle" in str(one.command)]
    environment = ("env", "-u", "DISPLAY", "-u", "XAUTHORITY")
    (source,) = sources
    from molink_agent.probe.commands import answer_of

    assert await answer_of(*environment, *source.command) is None
