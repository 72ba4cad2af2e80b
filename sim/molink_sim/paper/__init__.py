"""The tables of the MoLink paper (EMNLP Findings 2025): published, reproduced, and MoLink today."""

from molink_sim.paper.experiment import Setting, run_setting
from molink_sim.paper.report import draw_paper, paper_json, paper_tables
from molink_sim.paper.rows import PUBLISHED, TABLES, Means, Row, rows_of

__all__ = [
    "PUBLISHED",
    "TABLES",
    "Means",
    "Row",
    "Setting",
    "draw_paper",
    "paper_json",
    "paper_tables",
    "rows_of",
    "run_setting",
]
