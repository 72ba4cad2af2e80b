"""Files in an agent's data directory beside keys and limits: names, options, last facts.

`Known` is what the agent last knew, for programs that ask while it does not run: the agent writes
it, the doctor reads it. No secret is in it, so the doctor never opens the files that hold keys and
passwords, and its output may be pasted anywhere.
"""

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from molink.control.messages.base import ModelSize
from molink.control.messages.payloads import Profile
from molink.control.versions import Protocols
from molink.errors import UserError

MEMBERSHIP_FILE = "membership.json"
"""Name of the file that is there while the agent is a member of a cluster."""

KNOWN_FILE = "known.json"
THANKS_FILE = "thanks.json"
OPTIONS_FILE = "options.json"
WEIGHTS_DIR = "weights"

DATA_PORT_MAX = 65_535 - 63
"""The last from which on there are 64 ports, as many as an agent has."""

HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.\-]{0,252}")
"""An IPv4 address, or a name of this PC."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Options that an owner gave at `join`, kept for every later start."""

    data_port: int = 0
    """First of the agent's ports, of the peer service; 0: any free ones."""
    listen: str = "0.0.0.0"
    """Address at which stages and the peer service listen."""
    map_ports: bool = True
    """Ask the router to let neighbours in."""

    def __post_init__(self) -> None:
        if type(self.data_port) is not int or not 0 <= self.data_port <= DATA_PORT_MAX:
            raise UserError(
                f"--data-port takes a port from 0 to {DATA_PORT_MAX}, the first of 64, got "
                f"{self.data_port!r:.40}."
            )
        if not isinstance(self.listen, str) or HOST.fullmatch(self.listen) is None:
            raise UserError(f"--listen takes an address of this PC, got {self.listen!r:.80}.")
        if not isinstance(self.map_ports, bool):
            raise UserError(f"map_ports is true or false, got {self.map_ports!r:.40}.")

    def save(self, data_dir: Path) -> None:
        """Write the file. Raises UserError when that cannot be."""
        try:
            data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            (data_dir / OPTIONS_FILE).write_text(json.dumps(asdict(self)) + "\n")
        except OSError as error:
            raise UserError(
                f"{data_dir} cannot be written ({error.strerror}): give another --data-dir."
            ) from None

    @classmethod
    def load(cls, data_dir: Path) -> "AgentOptions":
        """Options that were saved, or the defaults. Raises UserError for a file of
        something else."""
        try:
            return cls(**json.loads((data_dir / OPTIONS_FILE).read_text()))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError, RecursionError, UserError):
            raise UserError(
                f"{data_dir / OPTIONS_FILE} is damaged: delete it, and give your options again."
            ) from None


class Known(BaseModel):
    """Facts that the agent last knew; everything may be missing, before it has joined all is."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    broker_host: str = ""
    """Empty: not joined yet."""
    broker_port: int = Field(default=0, ge=0, le=65535)
    coordinator_url: str = ""
    """URL of the coordinator's port for agents, https://host:port."""
    stun_port: int = Field(default=0, ge=0, le=65535)
    """UDP, at the coordinator's host; 0: it answers none."""
    data_port: int = Field(default=0, ge=0, le=65535)
    """Port to which neighbours connect; 0: any free one."""
    model: ModelSize | None = None
    speaks: Protocols | None = None
    """The coordinator; None: not heard yet."""
    profile: Profile | None = None
    """Profile as last sent to the coordinator."""

    @classmethod
    def load(cls, data_dir: Path) -> "Known":
        """Facts that were saved; none when there is no file, or it is no longer understood."""
        try:
            return cls.model_validate_json((data_dir / KNOWN_FILE).read_bytes())
        except (OSError, ValidationError):
            return cls()

    def save(self, data_dir: Path) -> None:
        """Replace the file as a whole. Raises OSError."""
        data_dir.mkdir(parents=True, exist_ok=True)
        new = data_dir / f"{KNOWN_FILE}.{os.getpid()}.new"
        new.write_text(self.model_dump_json(), encoding="utf-8")
        new.replace(data_dir / KNOWN_FILE)
