"""For how long has nobody used this PC: neither touched it nor computed on its GPU?

A film that is watched without touching anything shows on the GPU only, a text that is written on
the input only; the later of the two counts. Answers come now and then and some fail, so what is
remembered is the time of last use: it stays true while nobody answers, for a while.

Pure: the caller asks, and says what time it is.
"""

from dataclasses import dataclass

__all__ = ["INPUT_POLL_S", "INPUT_POLL_WSL_S", "IdleWatch"]

INPUT_POLL_S = 20.0
"""How often to ask: whoever comes back has the PC to himself after this at the latest, and asking
costs a process of about 10 ms."""

INPUT_POLL_WSL_S = 60.0
"""Under WSL: starting PowerShell costs about half a second of a core, 1 % at this rate."""

UNKNOWN_AFTER_S = 200.0
"""Three answers in a row may be missing; then nobody knows any more."""

GPU_USED_FROM_PERCENT = 15.0
"""A desktop with a browser draws 1 to 10 %; games and renderers start at 30."""

GPU_FREE_BELOW_PERCENT = 8.0
"""Under the other, so that a load about the threshold does not come and go with every look."""


@dataclass(slots=True)
class IdleWatch:
    """Remembers when the PC was last used. Times are of any one clock that does not jump."""

    _input_at_s: float | None = None
    _input_told_at_s: float = 0.0
    _gpu_used: bool = False
    _gpu_used_at_s: float | None = None

    def observe(
        self, now_s: float, input_idle_s: float | None, gpu_others_percent: float | None = None
    ) -> None:
        """Take answers into account; None is no answer."""
        if input_idle_s is not None:
            self._input_at_s = now_s - input_idle_s
            self._input_told_at_s = now_s
        if gpu_others_percent is not None:
            self._look_at_gpu(now_s, gpu_others_percent)

    def idle_s(self, now_s: float) -> float | None:
        """Since the last use; None while nobody can tell whether somebody is there."""
        if self._input_at_s is None or now_s - self._input_told_at_s > UNKNOWN_AFTER_S:
            return None
        used_at_s = max(self._input_at_s, self._gpu_used_at_s or self._input_at_s)
        return max(0.0, now_s - used_at_s)

    def _look_at_gpu(self, now_s: float, percent: float) -> None:
        threshold = GPU_FREE_BELOW_PERCENT if self._gpu_used else GPU_USED_FROM_PERCENT
        self._gpu_used = percent >= threshold
        if self._gpu_used:
            self._gpu_used_at_s = now_s
