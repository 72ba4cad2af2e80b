"""Times how long a device computes: a layer of the cluster's model, and weights of each format.

Each in a process of its own, because torch takes hundreds of megabytes and never gives them back.
Times are kept in a file, since neither the PC nor a model changes from one start to the next; those
of formats say nothing of a model and are measured once for a device.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from molink.checkpoint.model_config import model_shape
from molink.checkpoint.quantized.declared import declared_quantization
from molink.checkpoint.stage_size import PROBE_KV_TOKENS, PROBE_LAYERS_MAX, probe_size
from molink.control.messages.payloads import FormatCost, ProbeOrder, StepCost
from molink.errors import StageError
from molink.json_object import JsonObject
from molink_agent.daemon.measuring_budget import MeasuringBudget, spend
from molink_agent.limits.assignment_check import Loan, refusal_of_probe

STEPS_FILE = "steps.json"
STEP_PROBE_MODULE = "molink.engine.probes.step_probe"
STEP_PROBE_TIMEOUT_S = 300.0
"""A layer of a 70B model on an old CPU takes a minute; a device that needs longer is of no use."""

FORMAT_PROBE_MODULE = "molink.engine.probes.format_probe"
FORMATS_KEPT = "formats of weights"
"""Key that stands for a model's name where times are kept."""

Kept = dict[str, JsonObject]
"""Times of a model's layer, by its name; and those of formats, each by its name."""


@dataclass(slots=True)
class KeptStepTimes:
    """Times of a model's layer and of formats by device, each measured once and kept in a file."""

    data_dir: Path
    _measuring: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock that is held while something is timed: two at once would each find half of the PC."""

    async def of(self, order: ProbeOrder, loan: Loan, budget: MeasuringBudget) -> StepCost:
        """The times on one device. Raises StageError when they cannot be measured."""
        weights = declared_quantization(order.model, order.config).words
        key = f"{order.model} on {loan.device} with {loan.threads} threads{weights}"
        times = await self._kept_or(key, lambda: _layer_times(order, loan), budget)
        try:
            return StepCost(model=order.model, **times)
        except (ValidationError, TypeError):
            raise StageError("A layer's times came out impossible: measure again.") from None

    async def of_formats(self, loan: Loan, budget: MeasuringBudget) -> tuple[FormatCost, ...]:
        """Times of weights in each format on one device. Raises StageError when they cannot be
        measured."""
        key = f"{FORMATS_KEPT} on {loan.device} with {loan.threads} threads"
        times = await self._kept_or(key, lambda: _format_times(loan), budget)
        try:
            return tuple(FormatCost(format=name, **one) for name, one in times.items())
        except (ValidationError, TypeError):
            raise StageError("Times of formats came out impossible: measure again.") from None

    async def _kept_or(
        self, key: str, measure: Callable[[], Awaitable[JsonObject]], budget: MeasuringBudget
    ) -> JsonObject:
        async with self._measuring:
            kept = await asyncio.to_thread(self._kept)
            if key not in kept:
                await spend(budget, 1)
                kept[key] = await measure()
                text = json.dumps(kept, indent=1) + "\n"
                await asyncio.to_thread((self.data_dir / STEPS_FILE).write_text, text)
        return kept[key]

    def _kept(self) -> Kept:
        try:
            kept = json.loads((self.data_dir / STEPS_FILE).read_text())
        except (OSError, ValueError):
            return {}
        return kept if isinstance(kept, dict) else {}


async def _layer_times(order: ProbeOrder, loan: Loan) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="molink-probe-") as directory:
        await asyncio.to_thread(_write_config, Path(directory), order.config)
        layers = await asyncio.to_thread(_layers_that_fit, Path(directory), loan)
        return await _printed(loan, STEP_PROBE_MODULE, directory, "--layers", str(layers))


async def _format_times(loan: Loan) -> JsonObject:
    return await _printed(loan, FORMAT_PROBE_MODULE)


async def _printed(loan: Loan, *module_and_arguments: str) -> JsonObject:
    """Times that a probe prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *module_and_arguments),
        *("--device", loan.device, "--threads", str(loan.threads)),
        *("--memory-bytes", str(loan.memory_bytes)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(STEP_PROBE_TIMEOUT_S):
            out, err = await process.communicate()
    except TimeoutError:
        raise StageError("Timing a layer took over five minutes: use another device.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return _times(out, err)


def _layers_that_fit(directory: Path, loan: Loan) -> int:
    """Layers to time together. Raises StageError when not one fits into what is lent."""
    shape = model_shape(directory)
    refused = ""
    for layers in range(PROBE_LAYERS_MAX, 0, -1):
        refused = refusal_of_probe(loan, probe_size(shape, layers), PROBE_KV_TOKENS)
        if not refused:
            return layers
    raise StageError(refused)


def _write_config(directory: Path, config: JsonObject) -> None:
    (directory / "config.json").write_text(json.dumps(config))


def _times(out: bytes, err: bytes) -> JsonObject:
    try:
        return dict(json.loads(out))
    except (ValueError, TypeError):
        lines = err.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
        raise StageError(f"A layer could not be timed: {lines[-1][:300]}") from None
