"""The seam between an engine that has a stage's KV and the process that has its weights.

A pass of the model is asked for as a whole. In each layer the process with the weights hands over
finished queries, keys and values, and waits for their attention: the engine writes the keys and
values to its KV, attends, and answers. So that process keeps nothing from one pass to the next, and
where it is lost another one computes the pass again.

Shapes: T rows of a step, R rows whose logits are wanted, D hidden size, W words, H query heads, K
kv heads, A head size of keys, V of values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from molink.stage_protocol.messages import LoadStage
from molink.wire.elements import Elements


@dataclass(frozen=True, slots=True)
class WeightsLoaded:
    """Facts of a stage's weights, told once they are loaded."""

    dtype: str
    """Format of rows, queries, keys and values."""
    weights_bytes: int
    takes_token_ids: bool
    """Whether layers read something of the token itself."""
    swap_fallback: str | None
    """Parts computed the library's way, as a faster module was off; None: nothing is."""


class ModelPass(NamedTuple):
    """Pass of a stage's model over the rows of a step."""

    positions: Sequence[int]
    """Position [T] of each row in its request."""
    has_pieces: bool
    """Whether some rows are neighbours in a prompt: products may then be made of several."""
    token_ids: Sequence[int] = ()
    """Tokens [T] on the head, and where layers read them."""
    rows_TD: Elements | None = None
    """Rows of the stage before; None on the head."""
    keep: Sequence[int] | None = None
    """Rows [R] whose logits are wanted; None: rows are, of all."""


class LayerCall(NamedTuple):
    """What a layer calls its attention with."""

    layer: int
    q_THA: Elements
    k_TKA: Elements
    v_TKV: Elements
    sinks_H: Elements | None
    scale: float
    softcap: float | None
    window: int | None


Attend = Callable[[LayerCall], Elements]
"""Writes a layer's keys and values, and gives its attention [T, H, V]. Other passes may be asked
for inside."""


class Computing(Protocol):
    """Process with the weights of a stage, for one thread."""

    def load(self, load: LoadStage, progress: Callable[[float], None]) -> WeightsLoaded:
        """Have the weights loaded. Raises UserError or StageError with one sentence."""

    def rows(self, given: ModelPass, attend: Attend) -> Elements:
        """Rows [T, D] of a pass, or logits [R, W]. Where the process is lost meanwhile, another one
        makes the pass from its first layer on, and `attend` is called for it again. Raises
        StageError for what cannot be computed."""
