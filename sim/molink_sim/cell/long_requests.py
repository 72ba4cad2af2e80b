"""Long requests among short ones: a cell of instances against the same instances each for itself.

After DistKV-LLM's end-to-end figure (Lin et al., arXiv 2401.02669, fig. 8): instances of one
A100-80 with Llama-2-13B, each with a queue of its own; requests are dealt out at random. Counted
are tokens a second from the first request to the end of the last. An instance begins its requests
in their order, each as soon as it has room, by itself or with what others lend it. Time goes by
half seconds: prefill first, then decode steps, which read the weights and all KV that lies there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random

from molink.checkpoint.model_config import model_shape
from molink.hardware.gpu import gpu
from molink.hardware.roofline import RooflineCost, stage_cost
from molink_scheduler.batch import DECODE, PREFILL
from molink_scheduler.cell.events import CellLink, DeviceFacts
from molink_scheduler.cell.ledger import CellLedger
from molink_scheduler.cell.quotas import Quotas, link_s
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_sim.cell.devices import CellDevice, Devices
from molink_sim.cell.tables import kv_bytes
from molink_sim.cell.world import BEAT_S, CellWorld

INSTANCES, MODEL, GPU = 4, "llama-2-13b", "a100-80gb"
REQUESTS = 200
SHORT_TOKENS, LONG_TOKENS, ANSWER_TOKENS = (100, 2_000), (28_000, 52_000), (100, 500)
"""Least and most. A long prompt takes half to all of an instance's 56,000 tokens."""

ALL_FREE = Quotas(memory_share=1.0, mark_s=0.0)
"""Quotas of servers that nobody uses beside their queue."""

LINK = CellLink(35e-6, 45.7e9)
"""Link of the cards: Lamina's figures of a small message and back, and of bytes a second."""


@dataclass(slots=True)
class LongRequest:
    """A request on an instance."""

    prompt_tokens: int
    answer_tokens: int
    prefill_s: float
    done_tokens: float = 0.0

    @property
    def blocks(self) -> int:
        """Blocks that it takes from its beginning on."""
        return -(-(self.prompt_tokens + self.answer_tokens) // BLOCK_TOKENS)


@dataclass(slots=True)
class Instance:
    """A device with requests that it computes, and others that wait."""

    device: CellDevice
    cost: RooflineCost
    queue: list[LongRequest] = field(default_factory=list)
    running: list[LongRequest] = field(default_factory=list)
    borrows: bool = False
    """Whether it wants room for the first of the queue."""

    def begin(self, *, lends: bool) -> None:
        """Begin what there is room for; what is borrowed for a request that is still short of room
        goes back, and it is tried again: who held it would keep it from others."""
        device = self.device
        while self.queue:
            has_tried, self.borrows = self.borrows, False
            self.count()
            room = device.home_blocks + device.owed_blocks - device.need_blocks
            if room < self.queue[0].blocks:
                self.borrows = lends and not has_tried
                break
            self.running.append(self.queue.pop(0))
        self.count()

    def count(self) -> None:
        """Say how many blocks its requests need."""
        wanted = [*self.running, *(self.queue[:1] if self.borrows else [])]
        self.device.need_blocks = sum(request.blocks for request in wanted)

    def work(self, seconds: float) -> float:
        """Let it compute for so long: the tokens of answers that come."""
        for request in self.running:
            taken_s = min(seconds, request.prefill_s)
            request.prefill_s, seconds = request.prefill_s - taken_s, seconds - taken_s
        answering = [request for request in self._held() if request.prefill_s <= 0]
        steps = seconds / self._step_s(len(answering)) if answering else 0.0
        before = sum(request.done_tokens for request in answering)
        for request in answering:
            request.done_tokens = min(request.done_tokens + steps, request.answer_tokens)
        came = sum(request.done_tokens for request in answering) - before
        self.running = [one for one in self.running if one.done_tokens < one.answer_tokens]
        return came

    def _held(self) -> list[LongRequest]:
        """Requests that there is room for: while blocks are called back, the newest wait."""
        room = self.device.home_blocks + self.device.owed_blocks
        taken = accumulate(request.blocks for request in self.running)
        return [one for one, blocks in zip(self.running, taken, strict=True) if blocks <= room]

    def _step_s(self, rows: int) -> float:
        facts, device = self.device.facts, self.device
        tokens = (device.used_bytes + device.lent_bytes) * BLOCK_TOKENS // facts.block_bytes
        way_s = link_s(facts, LINK) if device.owed else 0.0
        return self.cost.step_s(DECODE, rows, tokens, rows) + way_s


def tokens_per_s(share: float, *, lends: bool, seed: int) -> float:
    """Tokens of answers a second of all instances, `share` of whose requests are long."""
    random, cost = Random(seed), instance_cost()
    instances = [Instance(one, cost) for one in instance_devices(INSTANCES, lends=lends)]
    for request in _requests(random, share, cost):
        random.choice(instances).queue.append(request)
    devices = Devices({one.device.name: one.device for one in instances})
    world, came = CellWorld(CellLedger(quotas=ALL_FREE), devices, random), 0.0
    while any(one.queue or one.running for one in instances):
        for instance in instances:
            instance.begin(lends=lends)
        world.beats(1)
        came += sum(instance.work(BEAT_S) for instance in instances)
    return came / world.now


def _requests(random: Random, share: float, cost: RooflineCost) -> Sequence[LongRequest]:
    found = list[LongRequest]()
    for _ in range(REQUESTS):
        prompt = random.randint(*(LONG_TOKENS if random.random() < share else SHORT_TOKENS))
        prefill_s = cost.step_s(PREFILL, prompt, prompt, 1)
        found.append(LongRequest(prompt, random.randint(*ANSWER_TOKENS), prefill_s))
    return found


def instance_cost() -> RooflineCost:
    """Times of an instance's steps."""
    shape = model_shape(MODEL)
    return stage_cost(shape, gpu(GPU), shape.layers, is_head=True, is_tail=True)


def instance_devices(count: int, *, lends: bool) -> list[CellDevice]:
    """Devices of so many instances, which may lend each other over the cards' links."""
    shape, names = model_shape(MODEL), [f"instance {number}" for number in range(count)]
    facts = DeviceFacts(
        memory_bytes=round(kv_bytes(MODEL, cards=1)),
        block_bytes=BLOCK_TOKENS * shape.layers * shape.kv_token_bytes,
        layers=shape.layers,
        row_bytes=2 * shape.row_bytes,
        attend_bytes_per_s=gpu(GPU).kv_bytes_per_s,
        links=dict.fromkeys(names, LINK) if lends else {},
    )
    return [CellDevice(name, facts, ALL_FREE) for name in names]
