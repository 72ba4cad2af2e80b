"""Ports that Windows' firewall is to let through, so that a rule can name them.

From the port of `molink agent join --data-port N` on: one for the measurements of each device, then
those at which links between stages listen.
"""

import json
from pathlib import Path

DATA_PORT = 27_600
"""Data port inside of WSL where the owner has named none: below those that Linux (32,768) and
Windows (49,152) give to programs which ask for any."""

MEASURING_PORTS = 16
"""One for each device that a PC can lend."""

PORTS = 64
"""Those, and the 48 at which links listen."""

ANY = "1-65535"
PORT_MAX = 65_535


def ports_from(data_port: int) -> str:
    """Ports of an agent with this data port, FIRST-LAST; all for 0: it takes free ones."""
    return f"{data_port}-{min(data_port + PORTS - 1, PORT_MAX)}" if data_port else ANY


def kept_data_port(data_dir: Path) -> int | None:
    """Data port that the owner gave at `join`; None: there was no such thing yet."""
    try:
        port = json.loads((data_dir / "options.json").read_text())["data_port"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return port if type(port) is int and 0 <= port <= PORT_MAX else None
