"""The scheduled task that starts the agent at logon, as the XML that Windows takes.

The task runs the agent itself, in the foreground of wsl.exe, and not merely a WSL in which systemd
would start it: WSL ends a distribution a few seconds after the last program that Windows started in
it, whatever services still run there. `conhost --headless`, which Microsoft does not document but
uses itself, keeps a window from opening.

A task was chosen over a Windows service because a service of another account sees none of the
user's distributions, and over the Startup folder because that starts nothing again after a crash.
Most settings undo defaults that are wrong here: tasks end after three days and when a laptop is
unplugged. Whether to compute on battery is the owner's own limit, which the agent obeys.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from molink.errors import UserError

TASK_NAME = "MoLink agent"

NAMESPACE = "http://schemas.microsoft.com/windows/2004/02/mit/task"

DELAY = "PT30S"
"""Delay after logon: what the owner opens first goes first."""

RESTART = {"Interval": "PT1M", "Count": "999"}
"""The shortest wait and the most attempts that Windows allows: sixteen hours of trying, until the
next logon begins anew."""

SETTINGS = {
    "MultipleInstancesPolicy": "IgnoreNew",
    "DisallowStartIfOnBatteries": "false",
    "StopIfGoingOnBatteries": "false",
    "ExecutionTimeLimit": "PT0S",
    "Priority": "7",
}
"""No end after a time; a priority below normal, of 0 to 10."""

_SID = re.compile(r"S-1-\d{1,14}(-\d{1,10}){1,15}")
_DISTRIBUTION = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PATH = re.compile(r"[A-Za-z0-9._/@+-]{1,400}")


@dataclass(frozen=True, slots=True)
class LogonTask:
    """Scheduled task of one owner. Raises UserError for a value that needs quoting on Windows."""

    user_sid: str
    """The owner's security identifier: the same in every language of Windows."""
    distribution: str
    molink: PurePosixPath
    """Absolute path of the command inside the distribution."""

    def __post_init__(self) -> None:
        if not _SID.fullmatch(self.user_sid):
            raise UserError(f"{self.user_sid!r} is no security identifier such as S-1-5-21-1-2-3.")
        if not _DISTRIBUTION.fullmatch(self.distribution):
            raise UserError(
                f"{self.distribution!r} cannot be the name of a WSL distribution: `wsl --list` "
                "shows the names."
            )
        if not self.molink.is_absolute() or not _PATH.fullmatch(str(self.molink)):
            raise UserError(f"The task needs a plain absolute path of molink, got {self.molink}.")

    def arguments(self) -> str:
        """Command line of conhost.exe."""
        return f"--headless wsl.exe -d {self.distribution} --exec {self.molink} agent run"

    def xml(self) -> str:
        """The task's definition, in plain ASCII so that no code page on the way can change it."""
        task = Element("Task", version="1.2", xmlns=NAMESPACE)
        _add(task, "RegistrationInfo", {"Description": "Lends this PC to a MoLink cluster."})
        trigger = ElementTree.SubElement(task, "Triggers")
        _add(trigger, "LogonTrigger", {"UserId": self.user_sid, "Delay": DELAY})
        principals = ElementTree.SubElement(task, "Principals")
        _add(principals, "Principal", self._principal()).set("id", "Owner")
        settings = _add(task, "Settings", SETTINGS)
        _add(settings, "RestartOnFailure", RESTART)
        actions = ElementTree.SubElement(task, "Actions", Context="Owner")
        _add(actions, "Exec", {"Command": "conhost.exe", "Arguments": self.arguments()})
        ElementTree.indent(task)
        xml: bytes = ElementTree.tostring(task, encoding="us-ascii")
        return xml.decode("ascii") + "\n"

    def _principal(self) -> dict[str, str]:
        """The owner while logged on, without an administrator's rights."""
        return {
            "UserId": self.user_sid,
            "LogonType": "InteractiveToken",
            "RunLevel": "LeastPrivilege",
        }


def _add(parent: Element, name: str, children: Mapping[str, str]) -> Element:
    """A new element with a child for each text."""
    element = ElementTree.SubElement(parent, name)
    for child, text in children.items():
        ElementTree.SubElement(element, child).text = text
    return element
