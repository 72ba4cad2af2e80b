"""Examples of each of the agent's commands, which stand at the end of its help."""

from molink.terminal.command_line import Examples

EXAMPLES: Examples = {
    "agent join": (
        "molink agent join molink1-INVITE",
        "molink agent join molink1-INVITE --name anna --device cuda:0 --upload-mbps 20",
    ),
    "agent run": ("molink agent run", "molink agent run --data-dir second"),
    "agent status": ("molink agent status", "molink agent status --json"),
    "agent report": ("molink agent report", "molink agent report --nights 7"),
    "agent page": ("molink agent page", "molink agent page --no-open"),
    "agent tray": ("molink agent tray", "molink agent tray --at-login"),
    "agent pause": ("molink agent pause", "molink agent pause --json"),
    "agent resume": ("molink agent resume", "molink agent resume --json"),
    "agent drain": ("molink agent drain", "molink agent drain --timeout-s 60"),
    "agent leave": ("molink agent leave", "molink agent leave --data-dir second"),
    "agent logs": ("molink agent logs", "molink agent logs -f --lines 100"),
    "agent doctor": ("molink agent doctor", "molink agent doctor --json"),
    "agent service install": (
        "molink agent service install",
        "molink agent service install --data-dir second",
    ),
    "agent service remove": (
        "molink agent service remove",
        "molink agent service remove --data-dir second",
    ),
    "agent service status": (
        "molink agent service status",
        "molink agent service status --data-dir second",
    ),
}
"""By the words of the command; `agent set` has an example of each limit instead."""
