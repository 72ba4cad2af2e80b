"""Survivors stay: who is not lost loads nothing, and only who was lost is fed again."""

from molink_scheduler.events import RunBatch
from molink_scheduler.resume import Resume
from molink_sim.checkers.checker import Checker, Place, RingLife
from molink_sim.scenario import Scenario


class SurvivorsStay(Checker):
    """Limit on what a loss costs the stages that were not lost."""

    name = "survivors stay"

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._lost: set[Place] = set()
        """Places that were lost, or took layers before their own, since their ring went on last."""
        self._fresh: set[Place] = set()
        """Places that have been replaced after the last loss of their ring."""

    def lost(self, place: Place) -> None:
        """Note a place that will be replaced."""
        self._lost.add(place)

    def grew(self, place: Place, *, is_behind: bool) -> None:
        """Layers before its own are fed as those of a stage that was replaced are."""
        if not is_behind:
            self._lost.add(place)

    def joined(self, place: Place, resume: Resume) -> None:
        """Fresh are those that were lost."""
        if resume.fresh != (place in self._lost):
            what = "was loaded again" if resume.fresh else "keeps what it has lost"
            self.mistake(f"{place} {what}")
        self._fresh.discard(place)
        if resume.fresh:
            self._fresh.add(place)

    def went_on(self, life: RingLife) -> None:
        """All that was lost is there again, but for what is lost already."""
        self._lost -= self._fresh & set(life.places)

    def started(self, place: Place, run: RunBatch) -> None:
        """Replayed rows are for a fresh stage."""
        if run.batch.replay and place not in self._fresh:
            self.mistake(f"{place} was fed again and had lost nothing")
