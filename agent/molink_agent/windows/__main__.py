"""`python3 -m molink_agent.windows`: what install.ps1 asks, answered in ASCII."""

import argparse
import importlib.util
import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path, PurePosixPath

from molink.errors import UserError
from molink_agent.windows.logon_task import LogonTask
from molink_agent.windows.ports import DATA_PORT, kept_data_port, ports_from
from molink_agent.windows.steps import WindowsFacts, parse_version, plan_steps
from molink_agent.windows.wslconfig import TextFile, is_mirrored, with_mirrored, without_ours

EXIT_USER_ERROR = 2

PYTHON_MIN = (3, 11)


def parser() -> argparse.ArgumentParser:
    """Parser with one subcommand for each question."""
    root = argparse.ArgumentParser(prog="molink_agent.windows", description=__doc__)
    commands = root.add_subparsers(dest="command", required=True)
    plan = commands.add_parser("plan", help="the steps from facts about this PC, as JSON")
    plan.add_argument("--build", type=int, required=True)
    plan.add_argument("--virtualisation", choices=("on", "off"), required=True)
    plan.add_argument("--wsl-version", required=True, help="as `wsl --version` says, or unknown")
    plan.add_argument("--distribution", required=True)
    plan.add_argument("--distribution-wsl", type=int, choices=(1, 2), required=True)
    plan.add_argument("--wslconfig", type=Path, required=True)
    plan.add_argument("--task-registered", choices=("yes", "no"), required=True)
    plan.add_argument("--runs-as", default="", help="account of this PowerShell")
    plan.add_argument("--logged-on", default="", help="account whose desktop this is")
    plan.add_argument("--nvidia-driver", help="its version; empty: none")
    plan.add_argument("--sleeps-after-s", type=int, default=0, help="while plugged in; 0: never")
    plan.add_argument("--free-disk-gb", type=int, help="of the drive of the profile")
    wslconfig = commands.add_parser("wslconfig", help="set mirrored networking in this file")
    wslconfig.add_argument("file", type=Path)
    wslconfig.add_argument("--remove", action="store_true", help="take back what was set")
    commands.add_parser("ports", help="those that the firewall is to let through, FIRST-LAST")
    task = commands.add_parser("task-xml", help="the scheduled task")
    task.add_argument("--user-sid", required=True)
    task.add_argument("--distribution", required=True)
    return root


def main(arguments: list[str] | None = None) -> int:
    """Answer one question; the exit code is 0, or 2 after one sentence."""
    options = parser().parse_args(arguments)
    try:
        print(ANSWERS[options.command](options), end="")
    except UserError as error:
        print(f"molink: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    return 0


def _plan(options: argparse.Namespace) -> str:
    facts = WindowsFacts(
        build=options.build,
        virtualisation=options.virtualisation == "on",
        wsl_version=parse_version(options.wsl_version),
        distribution=options.distribution,
        distribution_wsl=options.distribution_wsl,
        mirrored=is_mirrored(TextFile.read(options.wslconfig).text),
        python_complete=_python_is_complete(),
        has_apt=shutil.which("apt-get") is not None,
        task_registered=options.task_registered == "yes",
        runs_as=options.runs_as,
        logged_on=options.logged_on,
        nvidia_driver=options.nvidia_driver,
        sleeps_after_s=options.sleeps_after_s,
        free_disk_gb=options.free_disk_gb,
    )
    steps = [{"do": step.do.value, "says": step.text} for step in plan_steps(facts)]
    return json.dumps({"steps": steps}) + "\n"


def _python_is_complete() -> bool:
    """Whether this Python, the distribution's own, can make the environment that MoLink needs, and
    a compiler is there: kernels for cards are compiled where they run."""
    modules = all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))
    header = Path(sysconfig.get_path("include")) / "Python.h"
    compiles = shutil.which("gcc") is not None and header.exists()
    return modules and compiles and sys.version_info >= PYTHON_MIN


def _wslconfig(options: argparse.Namespace) -> str:
    file = TextFile.read(options.file)
    text = without_ours(file.text) if options.remove else with_mirrored(file.text)
    if text == file.text:
        return f"{file.path.name} needs no change.\n"
    file.write(text)
    return f"{file.path.name} is changed.\n"


def _ports(_: argparse.Namespace) -> str:
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    kept = kept_data_port(Path(data) / "molink-agent")
    return ports_from(DATA_PORT if kept is None else kept) + "\n"


def _task_xml(options: argparse.Namespace) -> str:
    molink = PurePosixPath(Path.home() / ".local" / "bin" / "molink")
    return LogonTask(options.user_sid, options.distribution, molink).xml()


ANSWERS = {"plan": _plan, "wslconfig": _wslconfig, "ports": _ports, "task-xml": _task_xml}


if __name__ == "__main__":
    sys.exit(main())
