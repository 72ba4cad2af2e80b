"""A card as far as `molink.engine.device.card.Card` is asked: no PC of the tests has one."""

from dataclasses import dataclass, field

GB = 2**30


@dataclass
class StandInCard:
    """Card whose memory is counted by hand."""

    device: str = "cuda:0"
    name: str = "RTX 3060"
    capability: tuple[int, int] = (8, 6)
    architectures: tuple[str, ...] = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_120")
    multiplies_bfloat16: bool = True
    driver: int | None = 580
    count: int = 1
    why_none: str = ""
    step_error: str = ""

    total_bytes: int = 12 * GB
    foreign: int = 0
    """Of other programs."""
    siblings: int = 0
    """Of stages beside this one, contexts included."""
    context: int = GB // 2
    held_bytes: int = 0
    """Of this process's tensors."""
    step: int = 0
    """That the longest step takes beside them."""
    tells_processes: bool = True
    returned: int = 0
    held_to: int | None = None
    waits: list[str] = field(default_factory=list)
    is_selected: bool = False

    @property
    def free_bytes(self) -> int:
        taken = self.foreign + self.siblings + self.context + self.held_bytes
        return self.total_bytes - taken

    @property
    def peak_bytes(self) -> int:
        return self.held_bytes + self.step

    def bytes_by_process(self) -> dict[int, int] | None:
        if not self.tells_processes:
            return None
        return {1: self.context + self.held_bytes, 2: self.siblings, 3: self.foreign}

    def forget_peak(self) -> None:
        self.returned += 1

    def return_freed(self) -> None:
        self.returned += 1

    def wait(self) -> None:
        self.waits.append("step")

    def hold_to(self, most_bytes: int) -> None:
        self.held_to = most_bytes

    def try_step(self) -> None:
        if self.step_error:
            raise RuntimeError(self.step_error)

    def select(self) -> None:
        self.is_selected = True

    @staticmethod
    def words(error: Exception) -> str:
        return str(error)


OURS = {1, 2}
"""Processes that divide the card."""
