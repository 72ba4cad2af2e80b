"""`molink sim compare`: a scenario simulated, and beside it what real processes made of it."""

from molink_sim.truth.comparison import Comparison, Figure, compare_figures
from molink_sim.truth.real import measured_profile, real_rounds
from molink_sim.truth.report import comparison_json, comparison_table, verdict
from molink_sim.truth.simulated import simulated_outcome, simulated_requests

__all__ = [
    "Comparison",
    "Figure",
    "compare_figures",
    "comparison_json",
    "comparison_table",
    "measured_profile",
    "real_rounds",
    "simulated_outcome",
    "simulated_requests",
    "verdict",
]
