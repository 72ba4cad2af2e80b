"""A stage that has taken lost layers beside its own: two executors that compute as one.

The process goes on, and what it held stays where it was: weights, KV and recorded steps. The new
layers have KV of their own. Between both rows lie on the host, as between two stages, so that
nothing of either need know of the other. To load both ranges again as one executor was rejected:
its KV would be gone, and that of thousands of tokens takes minutes to compute.

Which layers lack what of a request, the core says (`molink_scheduler.stage.extension`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from molink.checkpoint.description import ModelDescription
from molink.checkpoint.kv_format import KvDtype
from molink.engine.device.card import Card
from molink.engine.device.fallbacks import Fallbacks
from molink.engine.memory.state_pool import StatePool
from molink.engine.step.stage import StageExecutor
from molink.engine.step.step_output import StepOutput
from molink_scheduler.batch import Batch, Release
from molink_scheduler.head.prompt_queue import SPAN_TOKENS
from molink_scheduler.kv.blocks import KvBlocks
from molink_scheduler.resume import Resume
from molink_scheduler.stage.extension import Extension, HasRows
from molink_scheduler.stage.sent_rows import SentRows

Compute = Callable[[StageExecutor, Batch, SentRows], StepOutput]
"""Computes replayed rows."""


@dataclass(slots=True)
class ExtendedExecutor:
    """Two executors of adjacent layers that compute as one stage; for one thread at a time."""

    first: "Executor"
    second: "Executor"
    extension: Extension

    @property
    def parts(self) -> tuple[StageExecutor, ...]:
        """All executors, in the order of their layers."""
        return (*parts_of(self.first), *parts_of(self.second))

    @property
    def layers(self) -> range:
        """The layers that it owns."""
        return range(self.first.layers.start, self.second.layers.stop)

    @property
    def is_head(self) -> bool:
        """Whether batches enter the ring here, as token ids."""
        return self.first.is_head

    @property
    def is_tail(self) -> bool:
        """Whether tokens are drawn here."""
        return self.second.is_tail

    @property
    def takes_token_ids(self) -> bool:
        """Whether its layers read something of the token itself, so that ids go round with rows."""
        return self.first.takes_token_ids

    @property
    def description(self) -> ModelDescription:
        """Description of the model that its layers are of."""
        return self.first.description

    @property
    def hidden_size(self) -> int:
        """Width of the rows that travel between stages."""
        return self.first.hidden_size

    @property
    def device(self) -> torch.device:
        """Device on which both parts compute."""
        return self.first.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the rows that it takes."""
        return self.first.dtype

    @property
    def card(self) -> Card | None:
        """Card of the executor; None on a CPU."""
        return self.first.card

    @property
    def kv(self) -> KvBlocks:
        """The KV blocks of the part that has the fewest."""
        return min((part.kv for part in self.parts), key=lambda kv: kv.blocks_total)

    @property
    def kv_dtype(self) -> KvDtype:
        """Format in which KV is kept."""
        return self.first.kv_dtype

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of one token's KV in all of its layers."""
        return sum(part.kv_token_bytes for part in self.parts)

    @property
    def state_slots(self) -> int | None:
        """Requests whose states it can keep at a time; None: its layers keep no states."""
        slots = [part.state_slots for part in self.parts if part.state_slots is not None]
        return min(slots, default=None)

    @property
    def states(self) -> StatePool:
        """States of a part that keeps some, if any does."""
        keeping = (part.states for part in self.parts if part.state_slots is not None)
        return next(keeping, self.parts[0].states)

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights that it holds."""
        return sum(part.weights_bytes for part in self.parts)

    @property
    def fallbacks(self) -> Fallbacks:
        """Parts that it computes in a slower way than it could, and why."""
        slower = [part.fallbacks for part in self.parts]
        return Fallbacks(
            next((one.attention for one in slower if one.attention), None),
            next((one.fusion for one in slower if one.fusion), None),
            next((one.decode for one in slower if one.decode), None),
            next((one.swaps for one in slower if one.swaps), None),
        )

    def begin_epoch(
        self, resume: Resume, computed: Mapping[int, int], has_rows: HasRows
    ) -> tuple[int, ...]:
        """Enter the ring's next epoch; the requests that the stage cannot go on with, as
        `Extension.begin_epoch` says."""
        held = dict(self.extension.held) if resume.fresh else computed
        missing = self.extension.begin_epoch(resume, computed, has_rows)
        kept = self.second if self.extension.is_before else self.first
        if isinstance(kept, ExtendedExecutor):
            missing += kept.begin_epoch(Resume(resume.requests), held, has_rows)
        return tuple(dict.fromkeys(missing))

    def release(self, release: Release) -> None:
        """Forget a request; one that is unknown is fine."""
        self.extension.released(release.request_id)
        self.first.release(release)
        self.second.release(release)

    def feed(self, batch: Batch, compute: Compute) -> Iterator[tuple[Batch, StepOutput]]:
        """Compute first what new layers lack of the requests of a batch; the batches and what comes
        out of them, which the stage would have sent, had it held all layers from the start."""
        if self.extension.begins(batch):
            return  # The kept layers do not hear of it, or would take its requests for new.
        for inner in (self.first, self.second):
            if isinstance(inner, ExtendedExecutor):
                yield from inner.feed(batch, compute)
        for piece, sent in self.extension.fed(batch, SPAN_TOKENS):
            assert isinstance(self.second, StageExecutor), "what is loaded last is of one piece"
            yield piece, compute(self.second, piece, sent)

    def step(
        self,
        batch: Batch,
        token_ids: Sequence[int] | None = None,
        hidden_TD: torch.Tensor | None = None,
        interrupt: Callable[[], None] | None = None,
    ) -> StepOutput:
        """Compute one batch, as `StageExecutor.step`; no rows come of one that only new layers
        lack."""
        output = self.first.step(batch, token_ids, hidden_TD, interrupt)
        if self.extension.begins(batch):
            return replace(output, hidden_TD=None, token_ids=None)
        given = output.token_ids, output.hidden_TD
        following = self.second.step(batch, *given, interrupt)
        times_s = [one.computed_s for one in (output, following) if one.computed_s is not None]
        return replace(following, computed_s=sum(times_s) if times_s else None)


Executor = StageExecutor | ExtendedExecutor
"""Executor of a stage's batches."""


def parts_of(executor: Executor) -> tuple[StageExecutor, ...]:
    """The executors of one piece that a stage consists of."""
    return executor.parts if isinstance(executor, ExtendedExecutor) else (executor,)
