"""A forecast in words, as a table and as JSON."""

from typing import Any

from molink_sim.forecast.nodes import device_of
from molink_sim.forecast.plan import Bounds, Plan
from molink_sim.report import Table

__all__ = ["plan_json", "plan_lines", "split_table"]


def split_table(plan: Plan, model: str) -> Table:
    """Who takes what."""
    rows = [
        [
            share.node.name,
            device_of(share.node).name,
            str(share.layers),
            f"{share.weights_bytes / 1e9:.1f} GB",
            f"{share.kv_tokens:,}",
        ]
        for share in plan.shares
    ]
    head = ["PC", "device", "layers", "weights", "KV tokens"]
    return Table(f"{model} fits on these PCs", head, rows)


def plan_lines(plan: Plan, more: Plan | None, bounds: Bounds) -> list[str]:
    """One sentence for each answer."""
    capacity = plan.capacity
    lines = [
        f"Within {bounds.tpot_s:g} s per token and {bounds.ttft_s:g} s to the first: "
        f"{capacity.users:.0f} users at once, {capacity.rate_per_s:.2f} requests/s "
        f"(memory for {capacity.kv_users:.0f}).",
        f"At {plan.rate_per_s:.2f} requests/s: {_times(plan)}.",
        f"Bottleneck: {plan.bottleneck}.",
    ]
    if more is not None:
        lines.append(
            f"One more PC like the fastest: {more.capacity.users:.0f} users at once, "
            f"{more.capacity.rate_per_s:.2f} requests/s; at {more.rate_per_s:.2f} requests/s: "
            f"{_times(more)}."
        )
    return lines


def _times(plan: Plan) -> str:
    ttft, tpot = plan.run["ttft_s"], plan.run["tpot_s"]
    if not ttft or not tpot:
        return "no request gets its answer"
    unfinished = plan.run["unfinished"]
    tail = f", and {unfinished} of {plan.run['requests']} do not end" if unfinished else ""
    return f"first token after {ttft['mean']:.2f} s, then one every {tpot['mean']:.3f} s{tail}"


def plan_json(plan: Plan, more: Plan | None, bounds: Bounds) -> dict[str, Any]:
    """Ready for `to_json`."""
    return {
        "bounds": {"ttft_s": bounds.ttft_s, "tpot_s": bounds.tpot_s},
        "plan": _as_dict(plan),
        "one_more_pc": None if more is None else _as_dict(more),
    }


def _as_dict(plan: Plan) -> dict[str, Any]:
    return {
        "split": [
            {"name": share.node.name, "layers": share.layers, "kv_tokens": share.kv_tokens}
            for share in plan.shares
        ],
        "rate_per_s_max": plan.capacity.rate_per_s,
        "users_max": plan.capacity.users,
        "users_memory": plan.capacity.kv_users,
        "rate_per_s": plan.rate_per_s,
        "summary": plan.run,
        "bottleneck": plan.bottleneck,
    }
