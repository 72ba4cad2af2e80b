"""What a run came to, for people and for programs.

`summary` makes numbers of an outcome, `tables`, `curves`, `gantt` and `micro_batches` show them,
`page` binds tables and pictures into one HTML file that needs nothing else. A `Sweep` is many runs
with what each was made with; curves and the heat map read it. Only the pictures need matplotlib.
"""

from molink_sim.report.curves import plot_cdfs, plot_curves
from molink_sim.report.gantt import plot_gantt
from molink_sim.report.micro_batches import plot_micro_batch_curves, plot_micro_batches
from molink_sim.report.page import Picture, Section, write_page, write_run_page
from molink_sim.report.summary import summary, to_json
from molink_sim.report.sweep import Run, Sweep
from molink_sim.report.tables import (
    Table,
    busy_table,
    print_summary,
    print_table,
    spread_table,
)

__all__ = [
    "Picture",
    "Run",
    "Section",
    "Sweep",
    "Table",
    "busy_table",
    "plot_cdfs",
    "plot_curves",
    "plot_gantt",
    "plot_micro_batch_curves",
    "plot_micro_batches",
    "print_summary",
    "print_table",
    "spread_table",
    "summary",
    "to_json",
    "write_page",
    "write_run_page",
]
