"""A plan for people and for programs, made from a file of PCs or by a running cluster."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from molink.terminal.amounts import layers_text, words_text
from molink_scheduler.placement import Forecast, Plan
from molink_scheduler.units import GIB, gib_text


def print_plan(plan: Plan, model: str, console: Console) -> None:
    """A person's line; then a table and two sentences for each ring, and one for each standby."""
    print_line(console, person_line(plan))
    for number, ring in enumerate(plan.rings, start=1):
        console.print(_table(ring, f"{model}, planned ring {number} of {len(plan.rings)}"))
        for line in (*_ring_lines(plan, ring), *draft_lines(ring), *_fetch_lines(ring)):
            print_line(console, line)
    if len(plan.rings) > 1:
        print_line(console, f"All {len(plan.rings)} rings: {_load(plan.users, plan.tokens_per_s)}.")
    for standby in plan.standbys:
        print_line(console, f"Standby: {standby.name} {standby.reason}.")


def person_line(plan: Plan) -> str:
    """What people would feel: a user alone, and as many as the goal's bound lets in."""
    fastest = min(plan.rings, key=lambda ring: ring.tpot_alone_s)
    alone = f"One user: {words_text(1 / fastest.tpot_alone_s)} after {fastest.ttft_s:.1f} s"
    if plan.users == 0:
        return f"{alone}, more than {milliseconds(plan.goal.tpot_s)} for each token."
    if plan.users == 1:
        return f"{alone}."
    each = words_text(plan.tokens_per_s / plan.users)
    return f"{alone}. Up to {plan.users} users: {each} each."


def _table(ring: Forecast, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("PC", overflow="fold")
    has_states = any(stage.state_slots is not None for stage in ring.stages)
    kept = "KV/states" if has_states else "KV tokens"
    for head in ("layers", "weights", "used of lent", kept, "step", "busy", "link"):
        table.add_column(head, justify="right", no_wrap=True)
    last = len(ring.stages) - 1
    for place, stage in enumerate(ring.stages):
        table.add_row(
            stage.name,
            layers_text(stage.layers),
            gib_text(stage.weights_bytes),
            f"{stage.used_bytes / GIB:.1f}/{stage.memory_bytes / GIB:.1f}",
            f"{stage.kv_tokens:,}" + (f"/{stage.state_slots or '-'}" if has_states else ""),
            milliseconds(stage.step_s),
            f"{stage.busy_share:.0%}",
            "" if place == last else f"{stage.link_busy_share:.0%}",
        )
    return table


def _ring_lines(plan: Plan, ring: Forecast) -> list[str]:
    bound = milliseconds(plan.goal.tpot_s)
    alone = (
        f"A user alone waits {ring.ttft_s:.2f} s for the first token of "
        f"{plan.goal.prompt_tokens:,}, then {milliseconds(ring.tpot_alone_s)} for each"
    )
    if ring.users == 0:
        return [f"No user within {bound} per token. {alone}.", f"Bottleneck: {ring.bottleneck}."]
    return [
        f"Within {bound} per token: {_load(ring.users, ring.tokens_per_s)} in "
        f"{ring.micro_batches} micro-batch{'es' * (ring.micro_batches != 1)}, "
        f"one token each {milliseconds(ring.tpot_s)}. "
        f"{alone}.",
        f"Bottleneck: {ring.bottleneck}.",
    ]


def draft_lines(ring: Forecast) -> list[str]:
    """What drafts bring, and what of it is assumed; nothing where none are known."""
    if (drafts := ring.drafts) is None:
        return []
    users, who = max(1, ring.users), "model's own layer" if drafts.at_tail else "small model"
    return [
        f"With drafts of the {who}: {_load(users, drafts.tokens_per_s)} instead of "
        f"{ring.tokens_per_s:.0f}, and {drafts.tokens_per_s_alone:.1f} instead of "
        f"{1 / ring.tpot_alone_s:.1f} tokens/s for a user alone, at {drafts.width:.1f} drafts and "
        f"{drafts.tokens_a_round:.1f} tokens a round. Assumed, as it was not measured: "
        f"{drafts.acceptance:.0%} of the drafts come true whose text before them is right."
    ]


def _fetch_lines(ring: Forecast) -> list[str]:
    """What PCs download before the ring serves; nothing of a coordinator that does not say it."""
    total = sum(stage.fetched_bytes for stage in ring.stages)
    if not total:
        return []
    sentence = f"To fetch once: {gib_text(total)}"
    timed = [(stage.fetch_s, stage.name) for stage in ring.stages if stage.fetch_s is not None]
    if not timed:
        return [f"{sentence}."]
    longest_s, name = max(timed)
    return [f"{sentence}; {name} takes longest, {_minutes(longest_s)} on its line."]


def host_line(ring: Forecast, kept_of_token: Sequence[int], host_tokens: int) -> str:
    """How long a request may be on a ring whose stages hold so many tokens more in their PCs'
    memory; `kept_of_token`: bytes of one, layer by layer."""
    own = min(stage.kv_tokens for stage in ring.stages)
    kept = max(sum(kept_of_token[slice(*stage.layers)]) for stage in ring.stages)
    lent = gib_text(kept * host_tokens)
    return (
        f"No request has more than {own:,} tokens, or {own + host_tokens:,} where each PC lends "
        f"up to {lent} of its memory."
    )


def _minutes(seconds: float) -> str:
    return "under a minute" if seconds < 60 else f"{seconds / 60:.0f} min"


def _load(users: int, tokens_per_s: float) -> str:
    return f"{users} user{'s' * (users != 1)} at once, {tokens_per_s:.0f} tokens/s"


def milliseconds(seconds: float) -> str:
    """A time per token in words: `246 ms`, and `9.8 ms` below ten."""
    value = 1e3 * seconds
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def print_line(console: Console, line: str) -> None:
    """Print a sentence as it is, wrapped where the terminal ends."""
    console.print(line, markup=False, highlight=False)


def plan_fields(plan: Plan, model: str) -> dict[str, Any]:
    """The plan's numbers and more for JSON, in seconds and bytes."""
    return {
        "model": model,
        "goal": asdict(plan.goal),
        "users": plan.users,
        "tokens_per_s": plan.tokens_per_s,
        "ttft_s": plan.ttft_s,
        "rings": [asdict(ring) for ring in plan.rings],
        "standbys": [asdict(standby) for standby in plan.standbys],
    }
