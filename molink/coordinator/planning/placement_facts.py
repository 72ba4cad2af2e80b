"""A placement's facts: nodes, links and costs, by what nodes report as far as it is believed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from molink.checkpoint.model_shape import ModelShape
from molink.control.messages.base import ModelSize
from molink.control.messages.payloads import Device, PathMeasured, Profile, StepCost
from molink.coordinator.nodes.discrepancies import (
    Sightings,
    believed_rate,
    believed_upload,
)
from molink.coordinator.nodes.node import Node
from molink.coordinator.nodes.slowdown import AS_REPORTED, Slowdown, slowed_steps
from molink.coordinator.planning.step_times import steps_of
from molink_scheduler.link.facts import RATE_MAX_BYTES_PER_S
from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement import LinkFacts, Network, NodeFacts, StageForecast

HOP_SOFTWARE_S = 0.002
"""Seconds of a stage's step beside its layers: unpacking, packing, two thread wake-ups and the
link's thread (1.3 to 2.4 ms in docs/benchmarks/ring.md)."""

DOWNLOAD_GUESS_MBPS = 20.0
"""Rate of a node that could not measure its download: slow, so that no change is made light of."""

NO_PATH_S = 60.0
"""Delay of a link where no path was found."""

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class FactsMaker:
    """Maker of a placement's facts, for one model."""

    costs: Mapping[int, ModelCost]
    """Costs by the bytes of a number in the stages, see `PlannedModel`."""
    stored_element_bytes: int
    dtype: str
    """Format in which stages compute, as `--dtype` names it."""
    output_layers: float | None = None
    """Layers that are as much arithmetic for a row as the output matrix; None: its bytes tell."""
    shape: ModelShape | None = None
    """Shape to plan nodes that have timed another model; None: by that model's times."""
    model: str = ""
    """Public name of the model of that shape."""

    @property
    def cost(self) -> ModelCost:
        """Costs in the checkpoint's own format, in whose bytes the placement counts."""
        return self.costs[self.stored_element_bytes]

    def of(self, nodes: Sequence[Node]) -> tuple[list[NodeFacts], Network]:
        """Facts of measured nodes, and of the links between them."""
        seen = Sightings.of(nodes)
        facts = [self._node(node, seen.uploads.get(node.pc, ()), node.slowdown) for node in nodes]
        return facts, _network(nodes, seen.links)

    def link_rates_mbps(self, nodes: Sequence[Node]) -> list[float]:
        """Rate from each node of a ring to the next one, as a plan counts it before they serve."""
        seen = Sightings.of(nodes)
        facts = [self._node(node, seen.uploads.get(node.pc, ()), AS_REPORTED) for node in nodes]
        network = _network(nodes, seen.links)
        hops = list(zip(facts, [*facts[1:], *facts[:1]], strict=True))
        senders = Counter(sender.pc for sender, to in hops if sender.pc != to.pc)
        return [
            network.link(*hop).rate_bytes_per_s * 8e-6 / max(1, senders[hop[0].pc]) for hop in hops
        ]

    def model_size(self, name: str) -> ModelSize:
        """Size of the model, by which nodes know when they lend too little."""
        return ModelSize(
            name=name,
            layers=self.cost.layers,
            layer_bytes=min(self.cost.layer_bytes),
            # Bytes at two and at four a number: what they have in common are codes.
            code_bytes=max(0, 2 * min(self.costs[2].layer_bytes) - min(self.costs[4].layer_bytes)),
            element_bytes=4 if self.stored_element_bytes == 4 else 2,
            computed_bytes=4 if self.dtype == "float32" else 2 if self.dtype != "auto" else None,
        )

    def reported_decode_s(self, node: Node, layers: tuple[int, int], rows: int) -> float:
        """Seconds of a stage's decode step of so many rows, by the node's own report."""
        steps = self._steps(node)
        work = sum(self.cost.layer_work[slice(*layers)]) or layers[1] - layers[0]
        step_s = HOP_SOFTWARE_S + work * (steps.decode_fixed_s + rows * steps.decode_row_s)
        is_tail = layers[1] == self.cost.layers
        if not is_tail:
            return step_s
        fixed_s, row_s = self._head_s(steps)
        return step_s + fixed_s + rows * row_s

    def reported_row_s(self, node: Node, layers: tuple[int, int]) -> float:
        """Seconds of a row of a prompt in a stage, by the node's own report."""
        work = sum(self.cost.layer_work[slice(*layers)]) or layers[1] - layers[0]
        return work * self._steps(node).prefill_row_s

    def _steps(self, node: Node) -> StepCost:
        return steps_of(node, self.model, self.shape)

    def memory_bytes(self, device: Device, lent_bytes: int) -> int:
        """Lent bytes as the placement counts them: in a CPU without 16-bit arithmetic layers take
        twice as much, and quantized ones a little more."""
        there = self._cost_on(device)
        return lent_bytes * sum(self.cost.layer_bytes) // sum(there.layer_bytes)

    def token_bytes(self, device: Device, layers: tuple[int, int]) -> int:
        """Bytes that a token's KV takes in these layers on a device."""
        return sum(self._cost_on(device).kept_of_token[slice(*layers)])

    def kv_scale(self, device: Device) -> float:
        """KV bytes of a token on this device, as a multiple of what the plan counts."""
        there = self._cost_on(device)
        return self._scale(device, sum(self.cost.kept_of_token), sum(there.kept_of_token))

    def state_scale(self, device: Device) -> float:
        """Bytes of a request's states on this device, as a multiple of what the plan counts."""
        there = self._cost_on(device)
        return self._scale(device, sum(self.cost.kept_of_request), sum(there.kept_of_request))

    def tables_scale(self, device: Device) -> float:
        """Bytes of embeddings and output head on this device, as a multiple of what the plan
        counts."""
        return self._scale(device, self.cost.tail_bytes, self._cost_on(device).tail_bytes)

    def has_room(self, device: Device, layers: tuple[int, int], kv_tokens: int) -> bool:
        """Whether a device has room for these layers, with so many tokens of KV, now."""
        weights = self.cost.stage_bytes(*layers, self.tables_scale(device))
        token = sum(self.cost.kept_of_token[slice(*layers)]) * self.kv_scale(device)
        return weights + kv_tokens * token <= self.memory_bytes(device, device.free_bytes)

    def held_bytes(self, device: Device, stage: StageForecast) -> float:
        """Bytes of a device that a stage takes with all its KV and states, as the plan counts."""
        layers = slice(*stage.layers)
        token = sum(self.cost.kept_of_token[layers]) * self.kv_scale(device)
        state = sum(self.cost.kept_of_request[layers]) * self.state_scale(device)
        return stage.weights_bytes + stage.kv_tokens * token + (stage.state_slots or 0) * state

    def _scale(self, device: Device, bytes_here: int, bytes_there: int) -> float:
        """Factor from `bytes_here` to `bytes_there` on a device, against that of layers."""
        layers = sum(self.cost.layer_bytes) / sum(self._cost_on(device).layer_bytes)
        return layers * bytes_there / bytes_here if bytes_here else 1.0

    def _cost_on(self, device: Device) -> ModelCost:
        return self.costs[ELEMENT_BYTES.get(self.dtype, device.element_bytes)]

    def _node(self, node: Node, seen_mbps: Sequence[float], slowdown: Slowdown) -> NodeFacts:
        """`seen_mbps`: what others have seen its PC send. `slowdown`: with which it is planned."""
        profile = node.profile
        assert profile is not None, "only measured nodes are planned"
        device, steps = profile.devices[0], slowed_steps(self._steps(node), slowdown)
        head_fixed_s, head_row_s = self._head_s(steps)
        return NodeFacts(
            id=node.node_id,
            memory_bytes=self.memory_bytes(device, device.free_bytes),
            decode_fixed_s=steps.decode_fixed_s,
            decode_row_s=steps.decode_row_s,
            prefill_row_s=steps.prefill_row_s,
            step_fixed_s=HOP_SOFTWARE_S,
            head_row_s=head_row_s,
            head_fixed_s=head_fixed_s,
            upload_bytes_per_s=min(
                _upload_bytes_per_s(profile, seen_mbps), slowdown.link_mbps * 1e6 / 8
            ),
            download_bytes_per_s=profile.download_mbps * 1e6 / 8,
            kv_scale=self.kv_scale(device),
            tables_scale=self.tables_scale(device),
            state_scale=self.state_scale(device),
            name=node.name,
            pc=node.pc,
        )

    def _head_s(self, steps: StepCost) -> tuple[float, float]:
        """Seconds that the output matrix adds to a step and to each row: as reported, or of as
        many layers as it has bytes to read and weights to multiply with."""
        if steps.head_row_s:
            return 0.0, steps.head_row_s
        read = self.cost.tail_bytes * self.cost.layers / sum(self.cost.layer_bytes)
        multiplied = read if self.output_layers is None else self.output_layers
        return steps.decode_fixed_s * read, steps.decode_row_s * multiplied


def _network(nodes: Sequence[Node], seen: Mapping[str, Mapping[str, float]]) -> Network:
    here = {node.node_id for node in nodes}
    return Network(
        {
            (node.node_id, to): _link(path, seen.get(node.node_id, {}).get(to))
            for node in nodes
            for to, path in node.paths.items()
            if to in here
        }
    )


def _link(path: PathMeasured, seen_mbps: float | None) -> LinkFacts:
    """Facts of a link; a link that was not reached at all is taken for the worst there is."""
    if path.path == "none":
        return LinkFacts(0.0, NO_PATH_S)
    rate = believed_rate(path.rate_mbps, seen_mbps) * 1e6 / 8
    return LinkFacts(rate or RATE_MAX_BYTES_PER_S, path.rtt_ms / 2e3)


def _upload_bytes_per_s(profile: Profile, seen_mbps: Sequence[float]) -> float:
    believed = believed_upload(profile.upload_mbps, seen_mbps)
    cap = profile.upload_cap_mbps
    return (believed if cap is None else min(believed, cap)) * 1e6 / 8


def download_bytes_per_s(node: Node) -> float:
    """Rate at which the node downloads, as measured or guessed."""
    mbps = node.profile.download_mbps if node.profile is not None else 0.0
    return (mbps or DOWNLOAD_GUESS_MBPS) * 1e6 / 8
