"""Where do extra micro-batches stop paying? One kind of ring over delays, stage times and users."""

from molink_sim.sweep.findings import Finding, findings, findings_table, survey_json
from molink_sim.sweep.measure import survey
from molink_sim.sweep.setting import SurveySetting

__all__ = [
    "Finding",
    "SurveySetting",
    "findings",
    "findings_table",
    "survey",
    "survey_json",
]
