"""Before anybody joins: what would this set of PCs do with this model?"""

from molink_sim.forecast.nodes import Node, NodeSet, read_nodes
from molink_sim.forecast.plan import Capacity, Plan, make_plan
from molink_sim.forecast.report import plan_json, plan_lines, split_table
from molink_sim.forecast.split import Share, split_layers

__all__ = [
    "Capacity",
    "Node",
    "NodeSet",
    "Plan",
    "Share",
    "make_plan",
    "plan_json",
    "plan_lines",
    "read_nodes",
    "split_layers",
    "split_table",
]
