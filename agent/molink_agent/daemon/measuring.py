"""What this PC measures when the coordinator asks: a layer's times, the way to neighbours.

A layer is timed in a process of its own, because torch takes hundreds of megabytes and never gives
them back; its times are kept, since neither the PC nor the model changes from one start to the
next.
"""

import asyncio
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from molink.control.messages.payloads import ProbeOrder, StepCost
from molink.errors import StageError

__all__ = ["STEPS_FILE", "StepTimes"]

STEPS_FILE = "steps.json"
PROBE_MODULE = "molink.stage.step_probe"
PROBE_TIMEOUT_S = 300.0
"""A layer of a 70B model on an old CPU takes a minute; whoever needs longer is no use."""


@dataclass(slots=True)
class StepTimes:
    """Measures a model's layer on one device, once."""

    data_dir: Path

    async def of(self, order: ProbeOrder, device: str, threads: int) -> StepCost:
        """Raises StageError when it cannot be measured."""
        key = f"{order.model} on {device} with {threads} threads"
        known = await asyncio.to_thread(self._known)
        if key not in known:
            known[key] = await _measured(order, device, threads)
            await asyncio.to_thread(self._keep, known)
        try:
            return StepCost(model=order.model, **known[key])
        except (ValidationError, TypeError):
            raise StageError("A layer's times came out impossible: measure again.") from None

    def _known(self) -> dict[str, dict[str, float]]:
        try:
            known = json.loads((self.data_dir / STEPS_FILE).read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def _keep(self, known: dict[str, dict[str, float]]) -> None:
        (self.data_dir / STEPS_FILE).write_text(json.dumps(known, indent=1) + "\n")


async def _measured(order: ProbeOrder, device: str, threads: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="molink-probe-") as directory:
        await asyncio.to_thread(_write_config, Path(directory), order.config)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", PROBE_MODULE, directory),
            *("--device", device, "--threads", str(threads)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                out, err = await process.communicate()
        except TimeoutError:
            raise StageError("Timing a layer took over five minutes: use another device.") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return _times(out, err)


def _write_config(directory: Path, config: dict[str, Any]) -> None:
    (directory / "config.json").write_text(json.dumps(config))


def _times(out: bytes, err: bytes) -> dict[str, float]:
    try:
        times = json.loads(out)
        return {name: float(value) for name, value in times.items()}
    except (ValueError, TypeError, AttributeError):
        lines = err.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
        raise StageError(f"A layer could not be timed: {lines[-1][:300]}") from None
