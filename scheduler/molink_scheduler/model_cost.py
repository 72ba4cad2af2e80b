"""Cost of a model, layer by layer: what a stage of it holds, fetches and computes.

Who plans, who loads and who simulates read it alike. Pure.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class DraftCost:
    """Cost of a layer of the checkpoint that drafts, on the tail of a ring."""

    held_bytes: int
    """Its weights, as they are loaded."""
    file_bytes: int
    """Its weights, as they are fetched."""
    kv_bytes: int
    """Keys and values of one token; 0: it reads those of other layers."""


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Bytes and work of a model, layer by layer."""

    layer_bytes: tuple[int, ...]
    """Weights of each layer, as they are loaded; experts included."""
    kv_bytes: int
    """Keys and values of one token in one layer; where layers differ, a mean."""
    row_bytes: int
    """Bytes of one row of activations on the wire."""
    head_bytes: int = 0
    """Bytes of the first stage beside its layers: the embedding table."""
    tail_bytes: int = 0
    """Bytes of the last stage beside its layers: the output matrix, norms."""
    tied: bool = False
    """Whether the output matrix is the embedding table: a head that is tail has it once."""
    layer_work: tuple[float, ...] = ()
    """Work of a row in each layer, in units of the layer which nodes measure; empty: as much in
    all. It differs where some layers have experts and others none."""

    layer_file_bytes: tuple[int, ...] = ()
    """Weights of each layer as they are fetched; empty: as in memory. Quantized ones differ."""
    head_file_bytes: int | None = None
    """The embedding table as it is fetched; None: as in memory."""
    tail_file_bytes: int | None = None
    """Bytes of the last stage beside its layers as they are fetched; None: as in memory."""
    together: tuple[tuple[int, int], ...] = ()
    """Runs [start, end) of layers that stay on one stage, because later ones read the KV of earlier
    ones; in order, and apart."""
    embeds_everywhere: bool = False
    """Whether every stage has the embedding table, as each layer reads what it makes of tokens."""
    each_file_bytes: int = 0
    """Bytes that every stage fetches whole, of which it holds its layers' part: tables with columns
    for all layers."""
    layer_kv_bytes: tuple[int, ...] = ()
    """Keys and values of one token in each layer; empty: in all alike."""
    layer_state_bytes: tuple[int, ...] = ()
    """Bytes that each layer keeps of a request, whatever its length; empty: nothing."""
    drafts_at_tail: bool = False
    """Whether the last stage drafts: with a layer that is counted with its last one, and with the
    embedding table."""
    drafter_bytes: int = 0
    """Weights and KV of a model that drafts, in the first stage beside all else, or in the last."""
    drafter_file_bytes: int = 0
    """Bytes of its weights as they are fetched."""
    drafter_layers: float = 0.0
    """Layers of this model, as nodes measure them, that take as long as all of that one; 0: how
    long it takes is not known."""
    drafter_at_tail: bool = False
    """Whether that one drafts over the model's own KV, in the last stage."""

    def __post_init__(self) -> None:
        if not self.layer_bytes or min(*self.layer_bytes, self.row_bytes) < 1:
            raise ValueError("a model has layers, and bytes in each and in a row")
        if self.kv_bytes < (0 if self.layer_state_bytes else 1):
            raise ValueError("a model keeps KV of a token, or a state of a request")
        if min(self.head_bytes, self.tail_bytes, self.drafter_bytes, self.drafter_file_bytes) < 0:
            raise ValueError("tables and drafters have no less than 0 bytes")
        if self.layer_work and len(self.layer_work) != len(self.layer_bytes):
            raise ValueError("layer_work has a number for each layer, or none at all")
        if self.layer_file_bytes and len(self.layer_file_bytes) != len(self.layer_bytes):
            raise ValueError("layer_file_bytes has a number for each layer, or none at all")
        for each in (self.layer_kv_bytes, self.layer_state_bytes):
            if each and (len(each) != len(self.layer_bytes) or min(each) < 0):
                raise ValueError("KV and states have bytes for each layer, or none at all")
        if not all(0 < work < 1e3 for work in self.layer_work):
            raise ValueError("a layer's work is above 0, and below 1,000 measured layers")
        bounds = [0, *(bound for run in self.together for bound in run), self.layers]
        if bounds != sorted(bounds) or any(end - start < 2 for start, end in self.together):
            raise ValueError("runs of layers that stay together are of two or more, in order")
        if not 0 <= self.drafter_layers < float("inf"):
            raise ValueError("a drafter takes no less than 0 layers' time")
        if self.each_file_bytes < 0:
            raise ValueError("tables have no less than 0 bytes")

    @property
    def layers(self) -> int:
        """Number of the model's layers."""
        return len(self.layer_bytes)

    @property
    def uniform(self) -> bool:
        """Whether all layers cost the same."""
        sizes = (self.layer_bytes, self.layer_kv_bytes, self.layer_state_bytes)
        alike = all(len(set(one)) <= 1 for one in sizes) and set(self.layer_work) <= {1.0}
        return alike and not self.together

    @property
    def may_end(self) -> tuple[bool, ...]:
        """Flag for each number of layers from 0 to all: whether a stage may end behind so many."""
        parted = {n for start, end in self.together for n in range(start + 1, end)}
        return tuple(n not in parted for n in range(self.layers + 1))

    @property
    def stages_max(self) -> int:
        """Most stages that the model can be cut into."""
        return sum(self.may_end[1:])

    @property
    def kept_of_token(self) -> tuple[int, ...]:
        """Bytes of KV of one token, layer by layer."""
        return self.layer_kv_bytes or (self.kv_bytes,) * self.layers

    @property
    def kept_of_request(self) -> tuple[int, ...]:
        """Bytes of one request's states, layer by layer."""
        return self.layer_state_bytes or (0,) * self.layers

    def with_drafts(self, draft: DraftCost) -> "ModelCost":
        """The costs of a ring whose tail drafts: one layer more to hold, which is never apart from
        the model's last."""
        *kept, last_kept = self.kept_of_token
        *held, last_held = self.layer_bytes
        *fetched, last_fetched = self.fetched_layers
        return replace(
            self,
            layer_bytes=(*held, last_held + draft.held_bytes),
            layer_file_bytes=(*fetched, last_fetched + draft.file_bytes),
            layer_kv_bytes=(*kept, last_kept + draft.kv_bytes),
            drafts_at_tail=True,
        )

    def ends_bytes(self, is_head: bool, is_tail: bool) -> int:
        """Weights of a stage beside its layers, a drafter and its KV included."""
        ends = self._ends(self.head_bytes, self.tail_bytes, is_head, is_tail)
        return ends + self.drafter_bytes * self._is_drafters(is_head, is_tail)

    def _ends(self, head: int, tail: int, is_head: bool, is_tail: bool) -> int:
        drafts = is_tail and (self.drafts_at_tail or self.drafter_at_tail)
        embeds = is_head or self.embeds_everywhere or drafts
        if embeds and is_tail and self.tied:
            return max(head, tail)
        return head * embeds + tail * is_tail

    def _is_drafters(self, is_head: bool, is_tail: bool) -> bool:
        return is_tail if self.drafter_at_tail else is_head

    def stage_bytes(self, start: int, end: int, tables_scale: float = 1.0) -> int:
        """Weights of the stage with layers [start, end), on a node with this scale of tables."""
        ends = self.ends_bytes(start == 0, end == self.layers)
        return sum(self.layer_bytes[start:end]) + round(ends * tables_scale)

    @property
    def fetched_layers(self) -> tuple[int, ...]:
        """Bytes of each layer as it is fetched."""
        return self.layer_file_bytes or self.layer_bytes

    def fetched_bytes(self, start: int, end: int) -> int:
        """Bytes that a node downloads for the stage with layers [start, end)."""
        head = self.head_bytes if self.head_file_bytes is None else self.head_file_bytes
        tail = self.tail_bytes if self.tail_file_bytes is None else self.tail_file_bytes
        place = start == 0, end == self.layers
        ends = self._ends(head, tail, *place)
        ends += self.drafter_file_bytes * self._is_drafters(*place)
        return sum(self.fetched_layers[start:end]) + ends + self.each_file_bytes
