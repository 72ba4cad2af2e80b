"""Step times of a real stage, as `molink bench --profile` writes them.

A JSON object: `format` ("molink-profile"), `version`, what was measured (`model`, `device`,
`dtype`, `hidden_size`), `layers` of each measured stage and `model_layers` of the whole model, `pc`
(see `PcTimes`; older files have neither of these two), and for the roles `head`, `middle` and
`tail` the lists `decode` and `prefill` of points `{"rows", "context", "step_s"}`. Context is how
many tokens each row of a decode step attends to, and how many came before a prefill span.

The middle stage is measured at many contexts; head and tail at one, since what they do beside their
layers depends on the rows alone. A stage of another depth is the middle stage in proportion, plus
what the head or the tail took more than the middle one.

Between what was measured lie straight lines, and beyond it the line of the last two points. A table
of step times is ragged: many rows are measured with short contexts only, because long ones would
not fit. So each number of rows has a curve of its own, and a step between two numbers of rows lies
between their curves. Times never fall below zero.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molink.errors import UserError
from molink_scheduler.batch import BatchClass

FORMAT, VERSION = "molink-profile", 1

ROLES = ("head", "middle", "tail")
CLASSES = (BatchClass.DECODE, BatchClass.PREFILL)

Points = list[tuple[float, float, float]]


@dataclass(frozen=True, slots=True)
class Curve:
    """A value for every x, through measured points of rising x (at least one)."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.xs or len(self.xs) != len(self.ys) or sorted(set(self.xs)) != list(self.xs):
            raise ValueError("a curve goes through points of rising x, at least one")

    @classmethod
    def through(cls, points: Iterable[tuple[float, float]]) -> "Curve":
        """The curve through points in any order; no x twice."""
        ordered = sorted(points)
        return cls(tuple(x for x, _ in ordered), tuple(y for _, y in ordered))

    def at(self, x: float) -> float:
        """The value there, never below zero."""
        if len(self.xs) == 1:
            return self.ys[0]
        left, weight = _place(self.xs, x)
        return max(0.0, self.ys[left] + weight * (self.ys[left + 1] - self.ys[left]))


@dataclass(frozen=True, slots=True)
class Surface:
    """A value for every x and y: for each measured x a curve over y."""

    xs: tuple[float, ...]
    curves: tuple[Curve, ...]

    @classmethod
    def through(cls, points: Iterable[tuple[float, float, float]]) -> "Surface":
        """The surface through points (x, y, value); no (x, y) twice."""
        by_x: dict[float, list[tuple[float, float]]] = {}
        for x, y, value in points:
            by_x.setdefault(x, []).append((y, value))
        xs = sorted(by_x)
        return cls(tuple(xs), tuple(Curve.through(by_x[x]) for x in xs))

    def at(self, x: float, y: float) -> float:
        """The value there, never below zero."""
        if len(self.xs) == 1:
            return self.curves[0].at(y)
        left, weight = _place(self.xs, x)
        below, above = self.curves[left].at(y), self.curves[left + 1].at(y)
        return max(0.0, below + weight * (above - below))


def _place(xs: tuple[float, ...], x: float) -> tuple[int, float]:
    """The interval that x lies in, or the last one on its side, and how far along it is."""
    left = min(max(bisect_right(xs, x) - 1, 0), len(xs) - 2)
    return left, (x - xs[left]) / (xs[left + 1] - xs[left])


@dataclass(frozen=True, slots=True)
class PcTimes:
    """Costs of a ring whose stages, links and coordinator are all processes of the measured PC."""

    slowdown_together: tuple[float, ...]
    """Multiples of the time alone that a step takes with 1, 2, ... stages computing at once."""
    after_idle: tuple[tuple[float, float], ...]
    """Pairs (idle for so many seconds, by so many the next step takes longer)."""
    chunk_s: float
    """Time of a core that a chunk on a link costs, both ends and the emulator."""
    hop_s: float
    """Software's time on a hop: from a step's end to the next stage's, through the emulator."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "PcTimes":
        """Raises ValueError, KeyError or TypeError for what is no such thing."""
        slowdown = tuple(float(slow) for slow in data["slowdown_together"])
        idle = tuple((float(idle_s), float(more_s)) for idle_s, more_s in data["after_idle"])
        times = [float(data[name]) for name in ("chunk_s", "hop_s")]
        if not slowdown or not all(1 <= slow < 1e3 for slow in slowdown):
            raise ValueError("stages at once are not quicker than one alone")
        if not all(0 <= one < 1e3 for one in (*times, *(part for pair in idle for part in pair))):
            raise ValueError("times of a PC are not below 0")
        return cls(slowdown, idle, *times)


@dataclass(frozen=True, slots=True)
class StageProfile:
    """Step times of one file, and what head and tail add to them."""

    model: str
    device: str
    hidden_size: int
    layers: int
    middle: Mapping[BatchClass, Surface]
    head_more: Mapping[BatchClass, Curve]
    """Seconds of a head beyond those of a middle stage, over the rows."""
    tail_more: Mapping[BatchClass, Curve]
    model_layers: int | None = None
    """Layers of the whole model; None: the profile does not say."""
    pc: PcTimes | None = None
    """Times of a PC's stages together; None: they were not measured."""

    def cost(self, layers: int, is_head: bool, is_tail: bool) -> "ProfileCost":
        """The step cost of a stage of so many layers."""
        more = [self.head_more] * is_head + [self.tail_more] * is_tail
        return ProfileCost(self, layers / self.layers, tuple(more))


@dataclass(frozen=True, slots=True)
class ProfileCost:
    """Step cost of a stage by measured times."""

    profile: StageProfile
    depth: float
    """Layers over those of the measured stage."""
    more: tuple[Mapping[BatchClass, Curve], ...]

    def step_s(self, batch_class: BatchClass, rows: int, kv_tokens: int, sequences: int) -> float:
        """Seconds of one step, see `StepCost`."""
        if batch_class is BatchClass.DECODE:
            context = kv_tokens / rows
        else:
            context = max(0, kv_tokens - rows) / max(1, sequences)
        layers_s = self.depth * self.profile.middle[batch_class].at(rows, context)
        return layers_s + sum(curves[batch_class].at(rows) for curves in self.more)


def read_stage_profile(path: Path) -> StageProfile:
    """Raises UserError when the file is not such a profile."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the profile {path} ({error}): check the path.") from error
    if not isinstance(data, dict) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
        raise UserError(f"{path} is no profile of version {VERSION}: write one with molink bench.")
    try:
        return _profile(data)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"the profile {path} is incomplete ({error!r}): write it again with molink bench."
        ) from error


def _profile(data: Mapping[str, Any]) -> StageProfile:
    points = {
        role: {kind: _points(data[role][kind.name.lower()]) for kind in CLASSES} for role in ROLES
    }
    middle = {kind: Surface.through(points["middle"][kind]) for kind in CLASSES}
    layers, hidden = int(data["layers"]), int(data["hidden_size"])
    whole = None if data.get("model_layers") is None else int(data["model_layers"])
    if min(layers, hidden, whole or 1) < 1:
        raise ValueError("layers and hidden_size are at least 1")
    return StageProfile(
        str(data["model"]),
        str(data["device"]),
        hidden,
        layers,
        middle,
        {kind: _beyond(points["head"][kind], middle[kind]) for kind in CLASSES},
        {kind: _beyond(points["tail"][kind], middle[kind]) for kind in CLASSES},
        whole,
        PcTimes.from_json(data["pc"]) if "pc" in data else None,
    )


def _points(listed: list[Mapping[str, float]]) -> Points:
    points = [(float(p["rows"]), float(p["context"]), float(p["step_s"])) for p in listed]
    if not points or any(not (r >= 1 and c >= 0 and 0 < s < 1e6) for r, c, s in points):
        raise ValueError("points have rows from 1, a context from 0 and seconds above 0")
    if len({point[:2] for point in points}) < len(points):
        raise ValueError("no rows and context may be there twice")
    return points


def _beyond(points: Points, middle: Surface) -> Curve:
    """Time of these steps beyond those of a middle stage; noise may make it less than nothing."""
    more: dict[float, list[float]] = {}
    for rows, context, step_s in points:
        more.setdefault(rows, []).append(max(0.0, step_s - middle.at(rows, context)))
    return Curve.through((rows, sum(several) / len(several)) for rows, several in more.items())
