"""Extension of a stage by a lost one's layers, in the process that goes on.

What it holds is neither loaded again nor moved: its engine loads the new layers beside those that
it has, and all compute as one. Where the new ones are behind, the log of what was sent feeds them,
and another log begins for what leaves from now on. One that becomes its ring's head listens anew,
for the tail and for the coordinator, and loads the model that drafts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from molink.engine_protocol.engine import Engine
from molink.engine_protocol.values import Held, Prepared
from molink.stage.cache.stage_cache import StageCache
from molink.stage.health.recent_work import RecentWork
from molink.stage.links import StageLinks
from molink.stage.sent_log import SentLog
from molink.stage.tail import EndRules
from molink.stage_protocol.messages import (
    Fact,
    LoadProgressed,
    LoadStage,
    StageLoaded,
    Steered,
)
from molink_scheduler.kv.tiers import CacheTiers


@dataclass(frozen=True, slots=True)
class StageWorkings:
    """Parts that a stage's loop works with, and that change when it takes more layers."""

    layers: Prepared
    links: StageLinks
    sent: SentLog
    end_rules: EndRules
    recent: RecentWork


Extend = Callable[[StageWorkings, dict[int, int], LoadStage], StageWorkings]
"""Loads layers beside those of a stage, which holds KV of so many tokens of each request."""


@dataclass(frozen=True, slots=True)
class Extender:
    """Loader of a lost stage's layers beside those of this process."""

    engine: Engine
    add_drafter: Callable[[LoadStage, Prepared], str | None]
    """Loads the model that drafts beside a head's layers; why it does not draft."""
    cache: StageCache
    report: Callable[[Fact], None]
    steer: Callable[[Steered], None]

    def __call__(
        self, present: StageWorkings, computed: dict[int, int], load: LoadStage
    ) -> StageWorkings:
        """Load, and report. Raises UserError or StageError with one sentence."""
        held = Held(present.sent.log, computed)
        layers = self.engine.prepare(load, progress_to(self.report), held)
        more = self._working(present, layers, load)
        trouble = self.add_drafter(load, layers)
        self.report(loaded_stage(layers, more.links, trouble, self.cache.tiers_of(layers)))
        return more

    def _working(self, present: StageWorkings, layers: Prepared, load: LoadStage) -> StageWorkings:
        """The parts that more layers change."""
        more = replace(present, layers=layers, recent=RecentWork(layers.is_head))
        if layers.layers.stop > present.layers.layers.stop:
            old = present.sent
            more = replace(more, sent=SentLog(old.packing, old.dtype, old.bytes_max, old.rows_max))
        if layers.is_head and not present.layers.is_head:
            name = f"layers {layers.layers.start}-{layers.layers.stop}"
            links = StageLinks.bind(
                name, load.address, True, self.report, load.keys, load.first_port
            )
            self.steer(self.cache.steered(links.handle))
            more = replace(more, links=links)
        if layers.is_tail and not present.layers.is_tail:
            more = replace(more, end_rules=EndRules(layers.tokenizer))
        return more


def progress_to(report: Callable[[Fact], None]) -> Callable[[float], None]:
    """Reporter of how much is loaded."""
    return lambda fraction: report(LoadProgressed(fraction))


def loaded_stage(
    layers: Prepared,
    links: StageLinks,
    drafter_trouble: str | None,
    tiers: CacheTiers | None = None,
) -> StageLoaded:
    """Report of a stage once its layers are there."""
    return replace(
        layers.loaded,
        port=links.ports[0],
        coordinator_port=links.ports[1] if layers.is_head else None,
        tiers=tiers,
        drafter_trouble=drafter_trouble,
    )
