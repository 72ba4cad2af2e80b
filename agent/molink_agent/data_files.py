"""What the agent last knew, for those who ask while it does not run: no secret is among it.

The agent writes it when something in it changes; the doctor reads it. So the doctor never opens the
files that hold keys and passwords, and its output may be pasted anywhere.
"""

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from molink.control.messages.payloads import ModelSize, Profile

__all__ = ["KNOWN_FILE", "Known", "ModelSize"]

KNOWN_FILE = "known.json"
"""In the agent's data directory."""


class Known(BaseModel):
    """Everything may be missing: before it has joined, nothing is known."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    broker_host: str = ""
    """Empty: not joined yet."""
    broker_port: int = Field(default=0, ge=0, le=65535)
    coordinator_url: str = ""
    """http://host:port."""
    stun_port: int = Field(default=0, ge=0, le=65535)
    """UDP, at the coordinator's host; 0: it answers none."""
    data_port: int = Field(default=0, ge=0, le=65535)
    """Where neighbours connect to this PC; 0: any free one."""
    model: ModelSize | None = None
    profile: Profile | None = None
    """As last told to the coordinator."""

    @classmethod
    def load(cls, data_dir: Path) -> "Known":
        """What was saved; nothing when there is no file, or it is no longer understood."""
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
