"""The real half, in processes of its own: the simulator loads neither torch nor sockets for it.

Each round is `python -m molink.bench.truth`, a missing profile `molink bench --profile`. What they
say on standard error is for the user; what they measured comes back in files.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from molink.bench.truth.figures import SeenRequest
from molink.errors import UserError
from molink_sim.machines.stage_profile import StageProfile, read_stage_profile

__all__ = ["measured_profile", "real_rounds"]


def measured_profile(path: Path, model: str) -> StageProfile:
    """The profile at `path`, measured and written there when there is none.

    Raises UserError for a profile that lacks what stages of one PC need.
    """
    if not path.exists():
        _run("molink.cli.main", "bench", "--profile", str(path), model)
    profile = read_stage_profile(path)
    if profile.model_layers is None or not profile.slowdown_together:
        raise UserError(
            f"the profile {path} does not say how stages of one PC slow each other down: delete "
            "it, and it is measured again."
        )
    return profile


def real_rounds(scenario: Path, model: str, rounds: int) -> list[list[SeenRequest]]:
    """What users saw in each round. Raises UserError when one fails."""
    return [_round(scenario, model, number) for number in range(rounds)]


def _round(scenario: Path, model: str, number: int) -> list[SeenRequest]:
    with TemporaryDirectory() as folder:
        found = Path(folder, "round.json")
        options = ("--scenario", str(scenario), "--model", model, "--json", str(found))
        _run("molink.bench.truth", *options, "--round", str(number))
        return [SeenRequest.from_json(one) for one in json.loads(found.read_text())["requests"]]


def _run(module: str, *arguments: str) -> None:
    command: Sequence[str] = (sys.executable, "-m", module, *arguments)
    if subprocess.run(command, check=False).returncode != 0:
        raise UserError("the real half ended early: what it said stands above.")
