"""Placement: nodes in their order and the layers they hold, in one or several rings. See
docs/placement.md."""

from molink_scheduler.placement.change import ChangeCost, Decision, change_cost, worth_changing
from molink_scheduler.placement.evaluate import Forecast, StageForecast, forecast
from molink_scheduler.placement.facts import Goal, LinkFacts, Network, NodeFacts
from molink_scheduler.placement.plan import (
    Plan,
    Standby,
    even_plan,
    loaded_rings,
    make_plan,
    plan_on_shared_lines,
    tokens_per_s_together,
)
from molink_scheduler.placement.question import SPLITS
from molink_scheduler.placement.shortage import Shortage

__all__ = [
    "SPLITS",
    "ChangeCost",
    "Decision",
    "Forecast",
    "Goal",
    "LinkFacts",
    "Network",
    "NodeFacts",
    "Plan",
    "Shortage",
    "StageForecast",
    "Standby",
    "change_cost",
    "even_plan",
    "forecast",
    "loaded_rings",
    "make_plan",
    "plan_on_shared_lines",
    "tokens_per_s_together",
    "worth_changing",
]
