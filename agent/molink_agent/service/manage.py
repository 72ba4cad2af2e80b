"""The agent as a service of its owner's account: installed, removed, inspected."""

from pathlib import Path

from molink.systemd.unit_file import molink_program
from molink.systemd.user_service import ServiceStatus, UserService, xdg_folder
from molink_agent.service.unit import MADE_BY, unit_name, unit_text


def install_service(data_dir: Path) -> list[str]:
    """Write, enable and start the unit; returns what was done and what is left to do, for a person.

    Raises UserError where there is no systemd user instance, or it refuses.
    """
    where = data_dir.absolute()
    command = [*molink_program(), "agent", "run", "--data-dir", str(where)]
    return agent_service(data_dir).install(
        lambda isolated: unit_text(command, where, isolated=isolated)
    )


def remove_service(data_dir: Path) -> list[str]:
    """Stop and remove the unit; returns what was done. Works without systemd, too."""
    return agent_service(data_dir).remove()


def service_status(data_dir: Path) -> ServiceStatus:
    """The state of the service; never raises."""
    return agent_service(data_dir).status()


def agent_service(data_dir: Path) -> UserService:
    """The service of the agent with this data directory."""
    usual = xdg_folder("XDG_DATA_HOME", ".local/share") / "molink-agent"
    return UserService(
        unit_name(data_dir.absolute(), usual),
        what="agent",
        command="molink agent run",
        installed_by="molink agent service install",
        made_by=MADE_BY,
        when_failed=", `molink agent doctor` what to do",
        in_wsl="; or let windows/install.ps1 start the agent at logon",
        ends_in_wsl=(
            "WSL ends it seconds after its last window is closed; the task of windows/install.ps1 "
            "starts the agent at logon and keeps it."
        ),
    )
