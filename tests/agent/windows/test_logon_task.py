"""The task's XML: what it starts, and defaults of Windows that must not come back."""

from pathlib import PurePosixPath
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.errors import UserError
from molink_agent.windows.logon_task import NAMESPACE, LogonTask

SID = "S-1-5-21-2139355670-3375578443-2995265674-1001"
MOLINK = PurePosixPath("/home/ada/.local/bin/molink")


def read(task: LogonTask) -> ElementTree.Element:
    return ElementTree.fromstring(task.xml())


def text_of(root: ElementTree.Element, *path: str) -> str | None:
    return root.findtext("/".join(f"{{{NAMESPACE}}}{name}" for name in path))


def test_it_starts_the_agent_at_its_owners_logon():
    root = read(LogonTask(SID, "Ubuntu-24.04", MOLINK))
    assert root.tag == f"{{{NAMESPACE}}}Task"
    assert text_of(root, "Triggers", "LogonTrigger", "UserId") == SID
    assert text_of(root, "Principals", "Principal", "UserId") == SID
    assert text_of(root, "Principals", "Principal", "RunLevel") == "LeastPrivilege"
    assert text_of(root, "Actions", "Exec", "Command") == "conhost.exe"
    arguments = f"--headless wsl.exe -d Ubuntu-24.04 --exec {MOLINK} agent run"
    assert text_of(root, "Actions", "Exec", "Arguments") == arguments


def test_neither_time_nor_battery_ends_it_and_a_crash_starts_it_again():
    root = read(LogonTask(SID, "Debian", MOLINK))
    assert text_of(root, "Settings", "ExecutionTimeLimit") == "PT0S"
    for name in ("DisallowStartIfOnBatteries", "StopIfGoingOnBatteries"):
        assert text_of(root, "Settings", name) == "false"
    assert text_of(root, "Settings", "MultipleInstancesPolicy") == "IgnoreNew"
    assert text_of(root, "Settings", "RestartOnFailure", "Interval") == "PT1M"


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_no_value_adds_arguments_or_elements(sid, distribution, path):
    try:
        task = LogonTask(sid, distribution, PurePosixPath("/" + path))
    except UserError:
        return
    assert len(task.arguments().split()) == 8
    assert len(list(read(task).iter())) == len(list(read(LogonTask(SID, "D", MOLINK)).iter()))


@pytest.mark.parametrize(
    "values",
    [
        ("ada", "Debian", MOLINK),
        ("S-1-5-21 -1", "Debian", MOLINK),
        (SID, "My Linux", MOLINK),
        (SID, "", MOLINK),
        (SID, "Debian", PurePosixPath("molink")),
        (SID, "Debian", PurePosixPath('/home/a b/"molink')),
    ],
)
def test_values_that_would_not_survive_are_refused(values):
    with pytest.raises(UserError):
        LogonTask(*values)


def test_it_is_ascii():
    assert LogonTask(SID, "Debian", MOLINK).xml().isascii()
