"""Before anybody joins: what would this set of PCs do with this model?"""

from molink_sim.forecast.nodes import read_nodes
from molink_sim.forecast.plan import Bounds, Capacity, Plan, make_plan, plan_with_one_more
from molink_sim.forecast.report import plan_json, plan_lines, split_table
from molink_sim.forecast.split import Share, split_layers

__all__ = [
    "Bounds",
    "Capacity",
    "Plan",
    "Share",
    "make_plan",
    "plan_json",
    "plan_lines",
    "plan_with_one_more",
    "read_nodes",
    "split_layers",
    "split_table",
]
