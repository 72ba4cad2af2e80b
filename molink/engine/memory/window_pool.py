"""KV of the layers with a window: their tensors, and whose block is whose.

It is a pool beside that of whole layers, of other blocks and another length. Which layers are in it
is known once all have been called; until then, and where no window pays, it is empty.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from molink.engine.memory.kv_pool import KvPool
from molink.errors import UnsupportedModelError
from molink_scheduler.batch import KeptState, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.layer_class import REWOUND_TOKENS_MAX, LayerClass, WindowBlocks
from molink_scheduler.prompt_cut import WHOLE_LAYERS


@dataclass(slots=True)
class WindowPool:
    """Pool of one stage's layers with a window."""

    blocks: WindowBlocks = field(default_factory=WindowBlocks)
    tensors: KvPool = field(default_factory=lambda: KvPool(BLOCK_TOKENS))

    _seen: dict[int, int | None] = field(default_factory=dict)
    """Window of each layer that was called; None: it sees all tokens."""

    def called(self, layer_index: int, window: int | None) -> None:
        """Note a layer's call of attention. Raises UnsupportedModelError where it would see more
        than is kept."""
        self._seen[layer_index] = window
        if layer_index in self.layers and not 0 < (window or 0) <= self.blocks.layers.window:
            raise UnsupportedModelError(
                f"layer {layer_index} has had a window of {self.blocks.layers.window} tokens, "
                f"and now has one of {window or 'all'}"
            )

    def taking(self, whole: KvPool, length: int) -> "WindowPool":
        """Room for one request in the layers whose windows pay, which `whole` has no longer."""
        layers = LayerClass.of({index: self._seen.get(index) for index in whole.layers}, length)
        taken = {index: whole.layers.pop(index) for index in layers.layers}
        tensors = KvPool(BLOCK_TOKENS, whole.kv_dtype, taken)
        pool = WindowPool(WindowBlocks(layers), tensors, self._seen)
        return pool.resized(1)

    @property
    def layers(self) -> frozenset[int]:
        """Indices of the layers that are kept here."""
        return self.blocks.layers.layers

    @property
    def spared(self) -> frozenset[int]:
        """Indices of layers with a window that keep all tokens, as theirs does not pay."""
        return frozenset(index for index, window in self._seen.items() if window) - self.layers

    def is_cut(self, layer_index: int) -> bool:
        """Whether KV of prompts is cut in a layer: windows want to know how far away a key is."""
        return layer_index >= WHOLE_LAYERS and layer_index not in self.layers | self.spared

    def whole_of(self, pool: KvPool) -> list[int]:
        """Layers of the pool beside that keep all of a prompt that is cut."""
        return [index for index in pool.layers if not self.is_cut(index)]

    @property
    def request_bytes(self) -> int:
        """Bytes of one request, or of a snapshot."""
        return self._bytes(self.blocks.layers.request_blocks)

    @property
    def shared_bytes(self) -> int:
        """Bytes for the rows of a step, which no request has to itself."""
        return self._bytes(self.blocks.step_blocks)

    @property
    def held_bytes(self) -> int:
        """Bytes of all its blocks."""
        return self._bytes(self.blocks.blocks_total)

    def resized(self, requests: int, padding: int = 0, snapshots: int = 0) -> "WindowPool":
        """An empty pool for another number of requests; `padding`: blocks behind all others that
        are given to nobody."""
        if not self.layers:
            return self
        blocks = WindowBlocks(self.blocks.layers, requests, snapshots)
        slots = (blocks.blocks_total + padding) * BLOCK_TOKENS
        return WindowPool(blocks, self.tensors.resized(slots), self._seen)

    def grow(self, spans: Iterable[Span]) -> None:
        """Let requests hold the tokens of a step, and what these see. Raises OutOfBlocks where
        some of that is gone."""
        for span in spans if self.layers else ():
            self.blocks.grow(span.request_id, span.start, span.end)

    def computed(self, spans: Iterable[Span], kept: Iterable[KeptState]) -> None:
        """Keep snapshots behind a step that is over, and give back what no other step sees. Drafts
        may be wrong, and after a loss the ring may ask for a request's last tokens once more."""
        if not self.layers:
            return
        for one in kept:
            self.blocks.keep(one.request_id, one.tokens, one.snapshot)
        for span in spans:
            self.blocks.settle(span.request_id, span.known_end - REWOUND_TOKENS_MAX)

    def begin(self, request_id: int, snapshot: int) -> None:
        """Let a new request go on behind a snapshot."""
        if self.layers:
            self.blocks.begin(request_id, snapshot)

    def release(self, request_id: int, *, wiped: bool = False) -> None:
        """Forget a request; `wiped`: with the numbers in its blocks."""
        held = self.blocks.blocks_of(request_id)
        self.blocks.release(request_id)
        if wiped:
            self.tensors.wipe(self.blocks.free_among(held))

    def _bytes(self, blocks: int) -> int:
        return blocks * BLOCK_TOKENS * self.tensors.token_bytes
