"""Where the stages of a ring live, when not all on this machine's loopback: `--hosts FILE`.

    coordinator_address = "10.0.0.1"

    [[stage]]
    address = "10.0.0.2"
    command = ["ssh", "pc2"]

One `[[stage]]` table for each stage, in the ring's order. `address` is where it listens and what
its neighbours connect to; `command`, if there is one, is put before the stage's own command line. A
stage hears commands on standard input and answers on standard output, so anything that passes
those through will do: `ssh`, `ip netns exec`, a container's `exec`. The project and the model must
lie there under the same paths as here; the environment and the directory may be others. Links are
not encrypted yet: only within a trusted network.
"""

import ipaddress
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molink.errors import UserError
from molink.utf8 import utf8_text

__all__ = ["LOCAL_ADDRESS", "RingHosts", "StageAddress"]

LOCAL_ADDRESS = "127.0.0.1"

NAME_CHARACTERS_MAX = 253
"""Of a host name in DNS."""

NAME_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
"""A part of a host name between two dots."""


@dataclass(frozen=True, slots=True)
class StageAddress:
    """Address of a stage's host. Raises UserError for an address that nobody could connect to."""

    address: str = LOCAL_ADDRESS
    """An IPv4 address or a host name."""
    command: tuple[str, ...] = ()
    """Put before the stage's command line; empty: the stage runs here."""

    def __post_init__(self) -> None:
        _check_address(self.address)


@dataclass(frozen=True, slots=True)
class RingHosts:
    """Every stage's place, in order, and the coordinator's. Raises UserError."""

    stages: tuple[StageAddress, ...]
    coordinator_address: str = LOCAL_ADDRESS
    """Where the coordinator listens for the tail."""

    def __post_init__(self) -> None:
        _check_address(self.coordinator_address)
        tail = self.stages[-1].address if self.stages else LOCAL_ADDRESS
        if _is_loopback(self.coordinator_address) and _is_loopback(tail) is False:
            raise UserError(
                f"The last stage, at {tail}, cannot reach the coordinator at "
                f"{self.coordinator_address}: set coordinator_address to an address of this "
                "machine in the stages' network."
            )

    @classmethod
    def local(cls, nodes: int) -> "RingHosts":
        """All on this machine's loopback."""
        return cls((StageAddress(),) * nodes)

    @classmethod
    def read(cls, path: str) -> "RingHosts":
        """From a TOML file. Raises UserError when it cannot be read or says something else."""
        try:
            text = utf8_text(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UserError(f"--hosts {path} cannot be read: {reason}.") from None
        return cls.from_text(text, path)

    @classmethod
    def from_text(cls, text: str, source: str) -> "RingHosts":
        """From TOML; `source` names it in errors. Raises UserError."""
        try:
            fields = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"--hosts {source} is not valid TOML: {error}.") from None
        _check_keys(fields, ("stage", "coordinator_address"), source)
        tables = fields.get("stage")
        if not isinstance(tables, list) or not tables:
            raise UserError(f"--hosts {source} needs a [[stage]] table for each stage.")
        stages = tuple(_stage(one, f"{source}, stage {i}") for i, one in enumerate(tables))
        return cls(stages, fields.get("coordinator_address", LOCAL_ADDRESS))

    @property
    def text(self) -> str:
        """TOML that `from_text` reads."""
        lines = [f"coordinator_address = {json.dumps(self.coordinator_address)}"]
        for stage in self.stages:
            lines += ["", "[[stage]]", f"address = {json.dumps(stage.address)}"]
            if stage.command:
                lines.append(f"command = {json.dumps(stage.command)}")
        return "\n".join(lines) + "\n"


def _stage(fields: Any, source: str) -> StageAddress:
    if not isinstance(fields, dict):
        raise UserError(f"--hosts {source} must be a table with address and command.")
    _check_keys(fields, ("address", "command"), source)
    if "address" not in fields:
        raise UserError(f"--hosts {source} lacks an address.")
    command = fields.get("command", [])
    if not isinstance(command, list) or not all(isinstance(one, str) and one for one in command):
        raise UserError(
            f'--hosts {source}: command must be a list of strings, for example ["ssh", "pc2"].'
        )
    return StageAddress(fields["address"], tuple(command))


def _check_keys(fields: dict[str, Any], known: tuple[str, ...], source: str) -> None:
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise UserError(
            f"--hosts {source} has an unknown key {unknown[0]!r}: known are {' and '.join(known)}."
        )


def _check_address(address: Any) -> None:
    if not (isinstance(address, str) and (_is_name(address) or _is_connectable(address))):
        raise UserError(
            "--hosts takes IPv4 addresses and host names that others can connect to, "
            f"got {address!r}."
        )


def _is_name(text: str) -> bool:
    """A host name; what consists of digits alone at its end would be an address."""
    labels = text.split(".")
    well_formed = all(NAME_LABEL.fullmatch(label) for label in labels)
    return well_formed and not labels[-1].isdecimal() and len(text) <= NAME_CHARACTERS_MAX


def _is_connectable(text: str) -> bool:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return not (address.is_unspecified or address.is_multicast)


def _is_loopback(address: str) -> bool | None:
    """None for a host name: only its own machine knows."""
    return None if _is_name(address) else ipaddress.IPv4Address(address).is_loopback
