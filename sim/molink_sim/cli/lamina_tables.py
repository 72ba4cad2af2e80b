"""Tables of `molink sim cell --paper` about attention devices (Lamina, arXiv 2405.01814)."""

from collections.abc import Callable, Mapping

from molink_sim.report.tables import Table

MODELS = ("llama-65b", "llama-3-70b")
CONTEXT = 4_096


def _intensity() -> Table:
    from molink_sim.cell.attention_figures import flops_share, rows_for_flops_share

    batches = (1, 20, 50, 100, 200, 400)
    rows = [
        [
            model,
            *(f"{flops_share(model, batch):.0%}" for batch in batches),
            str(rows_for_flops_share(model, 0.2)),
        ]
        for model in MODELS
    ]
    head = ["", *(f"batch {batch}" for batch in batches), "20 % from"]
    return Table("Share of an H100's arithmetic in a decode step's matrices", head, rows)


def _overlap() -> Table:
    from molink_sim.cell.attention_figures import saved_by_queries_first

    batches = (8, 32, 64, 128, 256, 512)
    rows = [
        [model, f"{context:,}", "alone" if count == 1 else "two in turns"]
        + [
            f"{round(saved_by_queries_first(model, one, context, count), 4) + 0:.1%}"
            for one in batches
        ]
        for model in MODELS
        for context in (1_024, CONTEXT, 8_192)
        for count in (1, 2)
    ]
    head = ["model", "tokens of context", "", *(f"batch {one}" for one in batches)]
    return Table("Of a token's time saved by queries that leave first, (2, 4)", head, rows)


def _turns() -> Table:
    from molink_sim.cell.turns import best_offer

    rows = list[list[str]]()
    for model in MODELS:
        for trace in ("Azure-Conv", "Kimi-Conv"):
            for batches in range(1, 6):
                found = best_offer(model, trace, 2, batches)
                per_dollar = found.tokens_per_s / found.dollars_per_hour
                rows.append(
                    [
                        *(model, trace, str(batches), str(max(1, batches - 1))),
                        *(str(found.attention), f"{found.rows:.0f}"),
                        f"{1e3 * found.played.token_s:.0f}",
                        f"{found.played.copies_busy:.0%}",
                        f"{found.played.attention_busy:.0%}",
                        *(f"{found.tokens_per_s:,.0f}", f"{per_dollar:.1f}"),
                    ]
                )
    head = ["model", "trace", "batches", "copies", "H20", "requests", "token, ms"]
    head += ["copies busy", "H20 busy", "tokens/s", "for a dollar an hour"]
    return Table("Batches in turns on copies of two H100s", head, rows)


def _heads() -> Table:
    from molink.checkpoint.model_config import model_shape
    from molink_sim.cell.attention_figures import mean_slowest_device

    batches = (8, 16, 64, 128, 512)
    rows = [
        [
            str(devices),
            *(f"{mean_slowest_device(devices, batch):.2f}" for batch in batches),
            ", ".join(one for one in MODELS if model_shape(one).kv_heads % devices == 0),
        ]
        for devices in (2, 3, 4, 6, 8, 12, 16)
    ]
    head = ["devices", *(f"batch {one}" for one in batches), "heads can be shared out of"]
    return Table("Fullest device over the mean, whole requests on each; by heads 1.00", head, rows)


def _fetching() -> Table:
    from molink_sim.cell.attention_devices import MODELS as COMPARED
    from molink_sim.cell.attention_devices import TRACES
    from molink_sim.cell.attention_figures import fetching

    rows = list[list[str]]()
    for model, (_, compute, attention) in COMPARED.items():
        for trace in TRACES:
            found = fetching(model, trace, compute, attention)
            rates = (found.wanted_gb_per_s, found.idle_gb_per_s)
            times = found.wanted_gb_per_s / found.idle_gb_per_s
            split = f"{compute}, {attention}"
            cells = [f"{found.busy_share:.1%}", *(f"{one:.0f}" for one in rates), f"{times:.2f}"]
            rows.append([model, trace, split, *cells])
    head = ["model", "trace", "H100, H20", "links busy", "wanted, GB/s", "idle, GB/s", "share"]
    return Table(
        "KV of new prompts, and what attention devices' links carry in idle time", head, rows
    )


def _breakdown() -> Table:
    from molink_sim.cell.attention_figures import breakdown

    rows = [
        [model, str(one.rows)]
        + [f"{ms:.1f}" for ms in (one.model_ms, one.attention_ms, one.network_ms)]
        + [f"{ms:.1f}" for ms in (one.sum_ms, one.token_ms, one.turns_ms)]
        for model in MODELS
        for one in breakdown(model, CONTEXT, 2, 4, (8, 32, 64, 128, 256))
    ]
    head = ["model", "batch", "model", "attention", "network", "sum", "one alone", "two in turns"]
    return Table("Milliseconds of a token on (2, 4) with 4,096 tokens of context", head, rows)


def _scaling() -> Table:
    from molink_sim.cell.attention_figures import scaling

    attentions = (2, 4, 6, 8)
    rows = [
        [model, str(compute), *(f"{rate:,.0f}" for rate in rates)]
        for model in MODELS
        for compute, rates in scaling(model, "Azure-Conv", (2, 4, 8), attentions)
    ]
    head = ["model", "H100", *(f"{one} H20" for one in attentions)]
    return Table("Tokens/s of two batches in turns, Azure-Conv", head, rows)


LAMINA: Mapping[str, Callable[[], Table]] = {
    "intensity": _intensity,
    "overlap": _overlap,
    "turns": _turns,
    "heads": _heads,
    "fetching": _fetching,
    "breakdown": _breakdown,
    "scaling": _scaling,
}
"""By the names of `--paper`."""
