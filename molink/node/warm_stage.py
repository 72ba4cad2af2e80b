"""A stage's process that is started before its weights are there.

Loading torch and transformers takes a home PC three to ten seconds of its processor, a download
seconds to minutes of its line: done side by side, the shorter of both costs nothing.
"""

from dataclasses import dataclass

from molink.node.child_process import ChildProcess
from molink.node.stage_handle import StageHandle, start_process
from molink.stage_protocol.messages import LoadStage

__all__ = ["WarmStage"]


@dataclass(slots=True)
class WarmStage:
    """Process of a stage that waits for what to load, at most one."""

    _child: ChildProcess | None = None
    _threads: int = 0

    async def begin(self, threads: int) -> None:
        """Start one that will compute with so many threads; one that waits already ends."""
        await self.drop()
        self._child, self._threads = await start_process(threads), threads

    async def start(self, name: str, load: LoadStage) -> StageHandle:
        """The stage, in the process that waits if it still runs and fits, else in a new one."""
        child, self._child = self._child, None
        if child is None:
            return await StageHandle.start(name, load)
        if child.process.returncode is not None or self._threads != load.work.threads:
            await child.stop()
            return await StageHandle.start(name, load)
        return StageHandle.of(name, load, child)

    async def drop(self) -> None:
        """End the one that waits, if any."""
        child, self._child = self._child, None
        if child is not None:
            await child.stop()
