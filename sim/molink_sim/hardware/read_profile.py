"""A stage's cost from a file of measured times, whoever measured them."""

from pathlib import Path

from molink.errors import UserError
from molink.hardware.gpu import Gpu
from molink_sim.hardware.csv_profiles import HELIX_DECODE, HELIX_PROMPT, read_helix, read_vidur
from molink_sim.hardware.stage_profile import read_stage_profile
from molink_sim.scenario import StepCost

__all__ = ["read_profile"]


def read_profile(
    path: str | Path,
    *,
    layers: int | None = None,
    is_head: bool = False,
    is_tail: bool = False,
    gpu: Gpu | None = None,
) -> StepCost:
    """The cost of a stage of `layers` layers.

    Takes a profile of `molink bench --profile` (`layers` None: as many as were measured), one of
    Helix's pair of CSV files (one layer each, without what head and tail do beside), or a CSV of
    Vidur's kernels, which needs the `gpu` for attention. Raises UserError for anything else.
    """
    file = Path(path)
    if layers is not None and layers < 1:
        raise UserError(f"a stage has at least one layer, got {layers}.")
    if file.suffix == ".json":
        return read_stage_profile(file).cost(layers, is_head, is_tail)
    if layers is None:
        raise UserError(f"{file} tells the time of one layer: say how many the stage has.")
    if file.name.endswith((HELIX_DECODE, HELIX_PROMPT)):
        return read_helix(file, layers)
    if file.suffix != ".csv":
        raise UserError(f"{file} is no profile: give a .json of molink bench, or a .csv.")
    if gpu is None:
        raise UserError(f"{file} has no attention kernels: say which GPU it was measured on.")
    return read_vidur(file, layers, gpu, is_tail)
