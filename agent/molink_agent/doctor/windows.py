"""Checks of the Windows around a WSL. Where the installer's script is not there, or programs of
Windows cannot be started from within WSL, nothing is known, and one line says so."""

from molink_agent.doctor.facts import DoctorFacts, Finding, ok, skip, warn
from molink_agent.probe.windows import AroundWsl
from molink_agent.windows.ports import DATA_PORT, ports_from
from molink_agent.windows.steps import DISK_GB_MIN, WSL_MIRRORED_MIN
from molink_scheduler.units import GB, gb_text

MEMORY_SHARE_MIN = 0.6
"""Share of the PC's memory that WSL should have: it takes half unless it is told otherwise."""

AGAIN = "Run windows\\install.ps1 again, as administrator: it asks whether to let neighbours in."


def findings(facts: DoctorFacts) -> tuple[Finding, ...]:
    """One for each thing that Windows has a say in; none outside of WSL."""
    if facts.wsl is None:
        return ()
    windows = facts.windows
    if windows is None:
        why = (
            "does not answer, or has no script of the installer's; if links stay relayed, its "
            "Hyper-V firewall drops what comes in"
        )
        return (skip("Windows", why),)
    return (
        _firewall(facts, windows),
        _account(windows),
        _wsl_exe(windows),
        _compiler(facts),
        _driver(windows),
        _sleep(windows),
        _disk(windows),
        _memory(facts, windows),
        _task(windows),
    )


def _firewall(facts: DoctorFacts, windows: AroundWsl) -> Finding:
    port = facts.port.port if facts.joined else DATA_PORT
    name, ports = "firewall", ports_from(port)
    if windows.firewall_ports == "no firewall":
        return ok(name, "this Windows has no Hyper-V firewall")
    if facts.wsl is not None and facts.wsl.networking != "mirrored":
        return skip(name, "not needed: WSL is behind its own NAT, the relay leads here")
    if not facts.limits.direct:
        return skip(name, "not needed: direct = false, all links are relayed")
    if not port:
        found = "the agent takes any free port, which no rule can name: the relay leads here"
        return warn(name, found, f"`molink agent join --data-port {DATA_PORT}`. {AGAIN}")
    if windows.firewall_ports in ("", "not told"):
        return skip(name, "Windows does not tell its rule to this account")
    if windows.firewall_ports == "none":
        return warn(name, f"no rule lets neighbours in at {ports}: the relay leads here", AGAIN)
    if windows.firewall_ports != ports:
        found = f"the rule lets in at {windows.firewall_ports}, the agent listens at {ports}"
        return warn(name, found, AGAIN)
    return ok(name, f"a rule lets neighbours in at {ports}")


def _account(windows: AroundWsl) -> Finding:
    if windows.logged_on and windows.runs_as.lower() != windows.logged_on.lower():
        remedy = "Log on as the account that has WSL, or install MoLink for the other one."
        return warn(
            "account", f"WSL runs as {windows.runs_as}, {windows.logged_on} is logged on", remedy
        )
    return ok(
        "account", f"{windows.runs_as}, who is logged on" if windows.logged_on else windows.runs_as
    )


def _wsl_exe(windows: AroundWsl) -> Finding:
    version = windows.wsl_version
    if version is None or version < WSL_MIRRORED_MIN:
        return warn("wsl.exe", "older than 2.0", "In PowerShell: `wsl --update`.")
    return ok("wsl.exe", ".".join(map(str, version)))


def _compiler(facts: DoctorFacts) -> Finding:
    if facts.compiles:
        return ok("compiler", "gcc and Python's headers are there")
    remedy = "Inside WSL: `sudo apt install gcc python3-dev`."
    return warn("compiler", "there is no gcc with Python's headers: cards compute slower", remedy)


def _driver(windows: AroundWsl) -> Finding:
    if windows.nvidia_driver == "":
        remedy = "With an NVIDIA card: install its driver on Windows, never inside WSL."
        return warn("driver, Windows", "there is none of NVIDIA's: the CPU is lent", remedy)
    return ok("driver, Windows", str(windows.nvidia_driver))


def _sleep(windows: AroundWsl) -> Finding:
    if windows.sleeps_after_s:
        minutes = max(1, windows.sleeps_after_s // 60)
        remedy = "In PowerShell: `powercfg /change standby-timeout-ac 0`."
        return warn("sleep", f"after {minutes} min without input: nothing is lent then", remedy)
    return ok("sleep", "never while plugged in")


def _disk(windows: AroundWsl) -> Finding:
    free = windows.free_disk_gb or 0
    if free < DISK_GB_MIN:
        remedy = f"Free some: WSL's disk grows on that drive; {DISK_GB_MIN} GB are wanted."
        return warn("disk, Windows", f"{free} GB free on the drive of the profile", remedy)
    return ok("disk, Windows", f"{free} GB free")


def _memory(facts: DoctorFacts, windows: AroundWsl) -> Finding:
    has, whole = facts.machine.memory_bytes, (windows.memory_gb or 0) * GB
    found = f"WSL has {gb_text(has)} of the PC's {gb_text(whole)}"
    if has < MEMORY_SHARE_MIN * whole:
        remedy = (
            "To lend more, in %UserProfile%\\.wslconfig write [wsl2] and below it memory=NGB, then "
            "run `wsl --shutdown`."
        )
        return warn("memory cap", found, remedy)
    return ok("memory cap", found)


def _task(windows: AroundWsl) -> Finding:
    if windows.task_registered:
        return ok("start at logon", "the task MoLink agent is registered")
    remedy = "Run windows\\install.ps1 again, as administrator."
    return warn("start at logon", "no task starts the agent", remedy)
