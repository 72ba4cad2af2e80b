"""The real half, in processes of its own: the simulator loads neither torch nor sockets for it.

Each round is `python -m molink.bench.validation`, a missing profile `molink bench --profile`. What
they say on standard error is for the user; what they measured comes back in files.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from molink.errors import UserError
from molink.workload.figures import SeenRequest
from molink_sim.stage_profile import StageProfile, read_stage_profile


def measured_profile(path: Path, model: str) -> StageProfile:
    """The profile at `path`, measured and written there when there is none.

    Raises UserError for a profile that lacks what stages of one PC need.
    """
    if not path.exists():
        _run("molink.cli.main", "bench", "--profile", str(path), model)
    profile = read_stage_profile(path)
    if profile.model_layers is None or profile.pc is None:
        raise UserError(
            f"the profile {path} does not say what a ring on one PC costs beside its steps: "
            "delete it, and it is measured again."
        )
    return profile


@dataclass(frozen=True, slots=True)
class RealRound:
    """Run on a fresh ring."""

    requests: list[SeenRequest]
    busy_s: list[float]
    """How long each stage computed, by its own clock."""
    others_cores: float
    """Cores that other programs took meanwhile, in the mean."""


def real_rounds(
    scenario: Path, model: str, rounds: int, done: Callable[[], None] = lambda: None
) -> list[RealRound]:
    """Figures that users saw in each round; `done` after each. Raises UserError when one fails."""
    found = []
    for number in range(rounds):
        found.append(_round(scenario, model, number))
        done()
    return found


def _round(scenario: Path, model: str, number: int) -> RealRound:
    with TemporaryDirectory() as folder:
        found = Path(folder, "round.json")
        options = ("--scenario", str(scenario), "--model", model, "--json", str(found))
        _run("molink.bench.validation", *options, "--round", str(number))
        data = json.loads(found.read_text())
    seen = [SeenRequest.from_json(one) for one in data["requests"]]
    return RealRound(seen, data["busy_s"], data["others_cores"])


def _run(module: str, *arguments: str) -> None:
    command: Sequence[str] = (sys.executable, "-m", module, *arguments)
    if subprocess.run(command, check=False).returncode != 0:
        raise UserError("the real half ended early: what it said stands above.")
