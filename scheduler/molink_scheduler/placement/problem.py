"""The facts of a placement as tables of numbers, and what an order of nodes makes of them.

A search asks for thousands of rings, so names and objects are left behind once: nodes are numbers,
links are two matrices, and what depends only on the order of a ring (its delay, its wires) is added
up when the order is first seen.

The last stage's link to the first carries drawn tokens and no activations: it has a delay, but
nobody's upload fills it. So a ring begins somewhere: at the end of it is the place for the slowest
upload.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise, permutations

from molink_scheduler.head.prompt_queue import SPAN_TOKENS
from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement.facts import Goal, Network, NodeFacts

Order = tuple[int, ...]
"""Numbers of nodes, head first."""


class Problem:
    """A placement's facts as tables, nodes by their number. Immutable by custom."""

    __slots__ = (
        "bytes_before",
        "delay_s",
        "fixed_s",
        "goal",
        "layers",
        "may_end",
        "model",
        "nearest",
        "network",
        "nodes",
        "prefill_s",
        "row_s",
        "stages_max",
        "together_max",
        "uniform",
        "user_bytes",
        "user_bytes_before",
        "wire_row_s",
        "work_before",
    )

    def __init__(
        self, model: ModelCost, nodes: Sequence[NodeFacts], network: Network, goal: Goal
    ) -> None:
        """Raises ValueError when two nodes have the same id."""
        if len({node.id for node in nodes}) < len(nodes):
            raise ValueError("two nodes have the same id")
        self.model, self.nodes, self.goal, self.network = model, tuple(nodes), goal, network
        self.layers, self.uniform = model.layers, model.uniform
        self.may_end, self.stages_max = model.may_end, model.stages_max
        self.together_max = max([end - start for start, end in model.together], default=1)
        """Layers of the longest run that stays together: some node of a ring takes them all."""
        self.bytes_before = list(accumulate(model.layer_bytes, initial=0))
        """Weights of the first n layers."""
        work = model.layer_work or (1.0,) * model.layers
        self.work_before = list(accumulate(work, initial=0.0))
        """Work of the first n layers."""
        kept = {(node.kv_scale, node.state_scale): self._kept(node) for node in nodes}
        self.user_bytes_before = [kept[node.kv_scale, node.state_scale] for node in nodes]
        """KV and states of one user in the first n layers, for each node."""
        self.user_bytes = [-(-before[-1] // self.layers) for before in self.user_bytes_before]
        """KV and states of one user in one layer, for each node; where they differ, a mean."""
        self.fixed_s = [node.decode_fixed_s for node in nodes]
        self.row_s = [node.decode_row_s for node in nodes]
        self.prefill_s = [
            max(node.prefill_row_s, node.decode_fixed_s / SPAN_TOKENS) for node in nodes
        ]
        """Seconds for each row on each node: in a span, too, a layer's weights are read."""
        usual = [network.usual(node) for node in nodes]
        self.delay_s = [[link.one_way_s] * len(nodes) for link in usual]
        self.wire_row_s = [[model.row_bytes / link.rate_bytes_per_s] * len(nodes) for link in usual]
        self._take_measured_links()
        self._take_links_within_pcs()
        self.nearest = [_nearest(node, delays) for node, delays in enumerate(self.delay_s)]
        """Other nodes of each node, those with the shortest delay first."""

    def ends_bytes(self, node: int, is_head: bool, is_tail: bool) -> int:
        """Tables that a node holds at an end of a ring."""
        return round(self.model.ends_bytes(is_head, is_tail) * self.nodes[node].tables_scale)

    def _kept(self, node: NodeFacts) -> list[int]:
        """Bytes that the first n layers keep of one user on a node, for each n."""
        context, model = self.goal.context_tokens, self.model
        each = zip(model.kept_of_token, model.kept_of_request, strict=True)
        kept = (round(context * kv * node.kv_scale + s * node.state_scale) for kv, s in each)
        return list(accumulate(kept, initial=0))

    def _take_measured_links(self) -> None:
        """Put them into the tables: of a thousand nodes' million links few are measured."""
        numbers = {node.id: number for number, node in enumerate(self.nodes)}
        for sender, receiver in self.network.links:
            if sender in numbers and receiver in numbers:
                self._take_link(numbers[sender], numbers[receiver])

    def _take_links_within_pcs(self) -> None:
        """Put them into the tables: measured or not, they differ from links between homes."""
        pcs: dict[str, list[int]] = {}
        for number, node in enumerate(self.nodes):
            pcs.setdefault(node.pc, []).append(number)
        for devices in pcs.values():
            for a, b in permutations(devices, 2):
                self._take_link(a, b)

    def _take_link(self, a: int, b: int) -> None:
        link = self.network.link(self.nodes[a], self.nodes[b])
        self.delay_s[a][b] = link.one_way_s
        self.wire_row_s[a][b] = self.model.row_bytes / link.rate_bytes_per_s


def _nearest(node: int, delays_s: Sequence[float]) -> list[int]:
    others = [other for other in range(len(delays_s)) if other != node]
    return sorted(others, key=delays_s.__getitem__)


class OrderCosts:
    """Delays, wires, fixed times and memory of a ring, which its order alone decides."""

    __slots__ = ("delay_s", "memory_bytes", "order", "step_s", "steps_s", "wire_max_s", "wire_s")

    def __init__(self, problem: Problem, order: Order) -> None:
        nodes, last = problem.nodes, len(order) - 1
        self.order = order
        wires = [problem.wire_row_s[a][b] for a, b in pairwise(order)]
        self.wire_s = sum(wires)
        """Seconds of one row on all links that carry activations."""
        self.wire_max_s = max(wires, default=0.0)
        delays = [problem.delay_s[a][b] for a, b in pairwise(order)]
        self.delay_s = sum(delays) + (problem.delay_s[order[-1]][order[0]] if last else 0.0)
        """Delay of a round, the link back to the head included."""
        self.steps_s = [nodes[i].step_fixed_s for i in order]
        self.steps_s[-1] += nodes[order[-1]].head_fixed_s
        self.step_s = sum(self.steps_s)
        self.memory_bytes = [
            nodes[i].memory_bytes - problem.ends_bytes(i, place == 0, place == last)
            for place, i in enumerate(order)
        ]
        """Room for layers and KV, in order; below 0 where not even the tables fit."""
