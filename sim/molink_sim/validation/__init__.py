"""`molink sim compare`: a scenario simulated, and beside it what real processes made of it."""

from molink_sim.validation.comparison import (
    Comparison,
    Figure,
    compare_figures,
    comparison_json,
    comparison_table,
    disturbed,
    verdict,
)
from molink_sim.validation.real import RealRound, measured_profile, real_rounds
from molink_sim.validation.simulated import SimulatedRun, run_simulated

__all__ = [
    "Comparison",
    "Figure",
    "RealRound",
    "SimulatedRun",
    "compare_figures",
    "comparison_json",
    "comparison_table",
    "disturbed",
    "measured_profile",
    "real_rounds",
    "run_simulated",
    "verdict",
]
