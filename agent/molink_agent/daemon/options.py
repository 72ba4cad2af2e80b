"""How an agent was started: what its owner typed at `join`, kept for every later start."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from molink.errors import UserError

__all__ = ["OPTIONS_FILE", "AgentOptions"]

OPTIONS_FILE = "options.json"


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Beside the limits, which are their own file."""

    data_port: int = 0
    """Of the peer service; 0: any free one."""
    listen: str = "0.0.0.0"
    """Where stages and the peer service listen."""
    map_ports: bool = True
    """Ask the router to let neighbours in."""

    def save(self, data_dir: Path) -> None:
        """Keep them. Raises UserError when that cannot be."""
        try:
            data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            (data_dir / OPTIONS_FILE).write_text(json.dumps(asdict(self)) + "\n")
        except OSError as error:
            raise UserError(f"{data_dir} cannot be written: {error.strerror}.") from None

    @classmethod
    def load(cls, data_dir: Path) -> "AgentOptions":
        """As kept, or the defaults. Raises UserError for a file of something else."""
        try:
            return cls(**json.loads((data_dir / OPTIONS_FILE).read_text()))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError):
            raise UserError(
                f"{data_dir / OPTIONS_FILE} is damaged: delete it, and give your options again."
            ) from None
