"""Forecast of a ring that drafts: how many drafts are worth it, and what they bring.

The widths are those of the head that serves (`molink_scheduler.drafting.widths`), at the costs that
the plan has; what is not known before a model has drafted is how many drafts come true, which is
assumed. A tail computes its drafting layer over every row once more, and the layer and the output
matrix for each depth of drafts; a head runs its small model for each depth, and over prompts.
Answers that come sooner bring their users' next prompts sooner.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from molink_scheduler.batch import DRAFTS_MAX
from molink_scheduler.drafting.widths import DraftLoad, wanted_widths
from molink_scheduler.timing.round_model import RoundModel, StageCost

ACCEPTANCE_ASSUMED = 0.74
"""Chance of a draft to be right whose context is, until it is measured: of published pairs the
lower figure; those of a model and its own layer begin at 0.85 and fall with each further draft."""


@dataclass(frozen=True, slots=True)
class DraftForecast:
    """What drafts bring at a forecast's load."""

    acceptance: float
    """Assumed chance of a draft to be right whose context is."""
    width: float
    """Drafts of a user in a round, in the mean."""
    tokens_a_round: float
    """Tokens of a user in a round, in the mean."""
    tokens_per_s: float
    """Tokens per second of all users together."""
    tokens_per_s_alone: float
    """Tokens per second of a single user whose prompt is done."""
    at_tail: bool = True
    """Whether the model's own layer drafts, at the tail, and no small model at the head."""


@dataclass(frozen=True, slots=True)
class DraftingRing:
    """A ring whose split is decided, and what its tail, or its head, takes for drafts."""

    costs: RoundModel
    """Costs of its stages and links without drafts."""
    step: StageCost
    """Cost of one more draft of all users of a micro-batch."""
    row_s: float
    """Seconds of a drafting layer for a row, drafts or not."""
    prompt_row_s: Sequence[float]
    """Seconds of each stage for a row of a prompt."""
    wire_row_s: Sequence[float]
    """Seconds of each link for a row."""
    prompt_rows_per_token: float
    acceptance: float = ACCEPTANCE_ASSUMED
    at_tail: bool = True

    def forecast(self, users: int, count: int) -> DraftForecast:
        """The ring with so many users in `count` micro-batches."""
        width, tokens, cycle_s = self._round(users, count)
        _, alone, alone_s = replace(self, prompt_rows_per_token=0.0)._round(1, 1)
        together = users * tokens / cycle_s
        alone_per_s = alone / alone_s
        return DraftForecast(self.acceptance, width, tokens, together, alone_per_s, self.at_tail)

    def _round(self, users: int, count: int) -> tuple[float, float, float]:
        """Drafts and tokens of a user in a round, and seconds of a cycle."""
        costs = self._with_layer(0.0)
        share = self._prompts_share(users, costs.cycle_s(users, count))
        step_s = self.step.fixed_s + -(-users // count) * self.step.row_s
        load = DraftLoad(costs, count, step_s, share, self.at_tail)
        chances = dict.fromkeys(range(users), self.acceptance)
        widths = wanted_widths(chances, load, DRAFTS_MAX).values()
        width = sum(widths) / users
        tokens = sum(self._tokens(one) for one in widths) / users
        drafting = replace(self._with_layer(max(widths) * step_s), rows_each=1 + width)
        busy_s = self._busy_s(users, count, drafting, tokens)
        return width, tokens, max(drafting.cycle_s(users, count), *busy_s)

    def _tokens(self, width: int) -> float:
        """Tokens of a round with so many drafts: the drafts until the first wrong one, and one that
        is drawn."""
        return sum(self.acceptance**depth for depth in range(width + 1))

    def _with_layer(self, drafting_s: float) -> RoundModel:
        stages = list(self.costs.stages)
        place = len(stages) - 1 if self.at_tail else 0
        fixed_s, row_s = stages[place].fixed_s + drafting_s, stages[place].row_s + self.row_s
        stages[place] = replace(stages[place], fixed_s=fixed_s, row_s=row_s)
        return replace(self.costs, stages=tuple(stages))

    def _prompts_share(self, users: int, cycle_s: float) -> float:
        rows = users * self.prompt_rows_per_token
        return max([rows * row_s / cycle_s for row_s in self.prompt_row_s], default=0.0)

    def _busy_s(self, users: int, count: int, costs: RoundModel, tokens: float) -> list[float]:
        """Seconds that each device and link has to do in a cycle, prompts included."""
        rows = -(-users // count) * costs.rows_each
        prompt_rows = users * tokens * self.prompt_rows_per_token
        devices = [
            count * (stage.fixed_s + rows * stage.row_s) + prompt_rows * prompt_row_s
            for stage, prompt_row_s in zip(costs.stages, self.prompt_row_s, strict=True)
        ]
        return devices + [(count * rows + prompt_rows) * wire_s for wire_s in self.wire_row_s]
