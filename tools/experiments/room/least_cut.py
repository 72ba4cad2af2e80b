"""How much would a least cut of a model's graph pass on, beside the call of attention as it is?

    python -m tools.experiments.room.least_cut --out DIR

Lamina (Chen et al., arXiv 2405.01814, 4.2.1) takes attention out of a model's graph and cuts the
rest where the fewest bytes go over from what is computed before attention to what is computed
behind it: that context is to be kept, or sent to where the next slice runs. Here the graph is that
of torch's operations, traced without numbers, of three layers of published shapes in bf16, with the
attention of the one in the middle taken out. Beside the least cut (Edmonds and Karp) stand the
bytes of what is computed when the library calls attention and is read again behind it. Bytes of a
row; queries, keys and values go to attention either way.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

LAYERS, TAKEN_OUT = 3, 1
FAMILIES = (
    "llama",
    "qwen2",
    "qwen3",
    "gemma3_text",
    "olmo2",
    "cohere",
    "phi",
    "gpt_neox",
)
"""One behind another, and attention beside the MLP from cohere on."""

MASKS = dict.fromkeys(("full_attention", "sliding_attention"))
"""None: attention is not computed."""

Arcs = dict[object, dict[object, float]]
SOURCE, SINK = "source", "sink"


@torch.library.custom_op("molink_cut::attend", mutates_args=())
def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention, of which a graph shows that it is called."""
    return torch.empty_like(q.transpose(1, 2))


@attend.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(q.transpose(1, 2))


def _attention(
    module: object, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object, **__: object
) -> tuple[torch.Tensor, None]:
    return attend(q, k, v), None


@experiment
def main(out: Path) -> None:
    """Print bytes of a row's context by family: what is live at the call, and the least cut."""
    AttentionInterface.register("molink_cut", _attention)
    results = {family: _measured(family) for family in FAMILIES}
    write_report(out, "least_cut", results)
    rows = [[family, *(f"{n:,}" for n in found.values())] for family, found in results.items()]
    show(markdown_table(["family", *next(iter(results.values()))], rows))


def _measured(family: str) -> dict[str, int]:
    graph, hidden_size = _graph(family)
    calls = [one for one in graph.nodes if one.target == torch.ops.molink_cut.attend.default]
    call = calls[TAKEN_OUT]
    sent = sum(_bytes(one) for one in call.all_input_nodes) + _bytes(call)
    return {
        "a row": 2 * hidden_size,
        "sent to attention and back": sent,
        "live at the call": sum(_bytes(one) for one in _live(graph, call)),
        "least cut": round(least_cut(_arcs(graph, call))),
    }


def _graph(family: str) -> tuple[Graph, int]:
    config: Any = AutoConfig.for_model(family, num_hidden_layers=LAYERS)
    config._attn_implementation = "molink_cut"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        ids = torch.zeros(1, 1, dtype=torch.long)
        positions = torch.zeros(1, 1, dtype=torch.long)

    def forward(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        given = {"position_ids": positions, "use_cache": False}
        return model(ids, attention_mask=MASKS, **given).logits  # type: ignore[no-any-return]

    with torch.no_grad():
        return make_fx(forward)(ids, positions).graph, config.hidden_size


def _bytes(node: Node) -> int:
    """Bytes of what an operation computes; weights and constants are nowhere sent."""
    found = node.meta.get("val")
    if node.op == "get_attr" or not isinstance(found, torch.Tensor):
        return 0
    return found.numel() * found.dtype.itemsize


def _live(graph: Graph, call: Node) -> Iterator[Node]:
    """What is computed before the call and read behind it."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node is call:
            return
        if node not in call.all_input_nodes and any(order[u] > order[call] for u in node.users):
            yield node


def _arcs(graph: Graph, call: Node) -> Arcs:
    """Arcs of the graph without the call's inputs: an operation's result goes over once, however
    many read it, and nothing that is computed before the call reads what is computed behind it."""
    arcs: Arcs = {SOURCE: {(one, 0): inf for one in call.all_input_nodes}}
    for node in graph.nodes:
        is_several = isinstance(node.meta.get("val"), tuple | list)
        arcs.setdefault((node, 0), {})[node, 1] = inf if is_several else float(_bytes(node))
        arcs.setdefault((node, 1), {})
        for reader in node.users:
            if reader is not call:
                arcs[node, 1][reader, 0] = inf
                arcs.setdefault((reader, 0), {})[node, 0] = inf
    arcs[call, 0][SINK] = inf
    return arcs


def least_cut(arcs: Arcs) -> float:
    """Weight of the least cut between source and sink, which is the greatest flow."""
    left: Arcs = {one: dict(to) for one, to in arcs.items()}
    for one, to in arcs.items():
        for other in to:
            left.setdefault(other, {}).setdefault(one, 0.0)
    flow = 0.0
    while path := _path(left):
        more = min(left[one][other] for one, other in path)
        flow += more
        for one, other in path:
            left[one][other] -= more
            left[other][one] += more
    return flow


def _path(left: Arcs) -> Sequence[tuple[object, object]]:
    """Arcs of a shortest way on which more can flow."""
    before: dict[object, object] = {SOURCE: None}
    due = deque([SOURCE])
    while due and SINK not in before:
        one: Any = due.popleft()
        for other, room in left[one].items():
            if room > 0 and other not in before:
                before[other] = one
                due.append(other)  # type: ignore[arg-type]
    path, at = list[tuple[object, object]](), before.get(SINK)
    if at is None:
        return path
    path.append((at, SINK))
    while at != SOURCE:
        path.append((before[at], at))
        at = before[at]
    return path


if __name__ == "__main__":
    main()
