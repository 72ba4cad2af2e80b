"""What a restart comes to; `python -m tests.damage.outcomes FOLDER [full]` asks it of all files.

A process of its own, because the tests may run as root, who may read and write everything: it is
started without that right, or where nothing but its folder lies on a small disk, which it fills.
"""

import json
import subprocess
import sys
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from molink.errors import MolinkError
from tests.damage.kept_files import FILES, KeptFile

DISK_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Outcome:
    """One of: what is still known, the sentence of a refusal, the traceback of anything else."""

    known: str = ""
    sentence: str = ""
    trace: str = ""


def outcome(file: KeptFile, folder: Path) -> Outcome:
    """Start again with what is in the folder."""
    try:
        return Outcome(known=file.restart(folder))
    except MolinkError as error:
        return Outcome(sentence=str(error))
    except BaseException:
        return Outcome(trace=traceback.format_exc())


def make_all(root: Path) -> None:
    """A good file of each kind, in a folder of its name."""
    for file in FILES:
        (root / file.name).mkdir()
        file.make(root / file.name)


def _fill_disk(root: Path) -> None:
    """Mount a small disk at `root`, for this process alone, and leave no room on it."""
    options = ["-o", f"size={DISK_BYTES}", "tmpfs", str(root)]
    subprocess.run(["mount", "-t", "tmpfs", *options], check=True)
    make_all(root)
    with (root / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(bytes(4096)):
                pass
        except OSError:
            pass


def main(root: Path, *, fills: bool) -> None:
    if fills:
        _fill_disk(root)
    found = {file.name: asdict(outcome(file, root / file.name)) for file in FILES}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), fills="full" in sys.argv[2:])
