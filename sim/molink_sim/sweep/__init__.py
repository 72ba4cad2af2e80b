"""Where do extra micro-batches stop paying? One kind of ring over delays, stage times and users."""

from molink_sim.sweep.findings import Finding, findings, findings_table, sweep_json
from molink_sim.sweep.measure import SweepSetting, simulate_sweep

__all__ = [
    "Finding",
    "SweepSetting",
    "findings",
    "findings_table",
    "simulate_sweep",
    "sweep_json",
]
