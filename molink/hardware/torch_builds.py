"""Choice of the build of torch that has code for a card, and whose driver is new enough.

A build carries machine code for some compute capabilities. A card runs code of its own major number
and of its minor number or a lower one (an RTX 4070, 8.9, runs what is made for 8.6), and text code
(PTX) of any lower number, which its driver translates. A card without code is listed by torch like
any other, and fails at its first kernel.

`deploy/install.sh` chooses by the same table before there is any Python to ask; a test compares
them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Capability = tuple[int, int]
"""Major and minor number, as the driver tells them."""

INSTALLER = "sh deploy/install.sh"


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """Build of torch that its project publishes for x86-64."""

    cuda: str
    driver_min: int
    """The first driver of NVIDIA's that runs it."""
    capabilities: tuple[Capability, ...]
    """Capabilities for which it has code, by torch's own table of its release 2.13."""


BUILDS = (
    TorchBuild("13", 580, ((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0))),
    TorchBuild("12.6", 525, ((5, 0), (6, 0), (7, 0), (7, 5), (8, 0), (8, 6), (9, 0))),
)
"""Best first."""


def has_code(capability: Capability, architectures: Iterable[str]) -> bool:
    """Whether a card runs any of these, in torch's words: `sm_86`, `compute_120` and so on."""
    return any(_runs(capability, name) for name in architectures)


def build_for(capability: Capability, driver: int) -> TorchBuild | None:
    """The best build that has code for the card and that its driver runs; None: there is none."""
    return next((one for one in _with_code(capability) if driver >= one.driver_min), None)


def how_to_get_code(capability: Capability, driver: int | None) -> str:
    """Advice about a torch without code for the card. `driver`: its first number; None: unknown."""
    builds = _with_code(capability)
    if not builds:
        return "no build of torch has any: use --device cpu"
    build = builds[0] if driver is None else build_for(capability, driver)
    if build is not None:
        return f"install torch's build for CUDA {build.cuda}, as `{INSTALLER}` does"
    least = min(one.driver_min for one in builds)
    return f"update the NVIDIA driver to {least} or newer, then run `{INSTALLER}` again"


def _with_code(capability: Capability) -> Sequence[TorchBuild]:
    return [
        build
        for build in BUILDS
        if has_code(capability, (f"sm_{major}{minor}" for major, minor in build.capabilities))
    ]


def _runs(capability: Capability, architecture: str) -> bool:
    kind, _, number = architecture.partition("_")
    if number.endswith("a"):  # Code of one card's special instructions: no other card runs it.
        return kind == "sm" and number[:-1] == f"{capability[0]}{capability[1]}"
    digits = number.removesuffix("f")
    if not digits.isdecimal():
        return False
    made_for = divmod(int(digits), 10)
    if kind == "compute":
        return made_for <= capability
    return made_for[0] == capability[0] and made_for[1] <= capability[1]
