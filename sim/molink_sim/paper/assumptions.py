"""What the paper does not say and may be assumed, by name; each changes every row alike.

None is on by itself. docs/benchmarks/simulator.md says which rows come out with which of them. The
paper says nothing for or against most of them; they are read off its own numbers.

*Software.* At 400 Mbps a round is delay and software: 0.25, 0.23 and 0.21 s a token less 0.09 s of
delay, 0.02 s of arithmetic and what prompts stand in the way leave some 0.03 s a hop.

*Prompts alone.* Let B be an undisturbed round, and P the time for which one prompt holds decode up.
At R requests per second a token takes B / (1 - R x P). With B of the constants and 30 ms of
software the published TPOT gives for vLLM

    0.1, 0.2, 0.3 requests/s at 100 Mbps     2.6, 2.8, 2.8 s
    60, 200, 400 Mbps at 0.2 requests/s      3.9, 1.4, 0.9 s

which is 25 MB, both hops of the mean prompt, one after the other, and half a second. So of two
prompts none was on the second hop while the other was on the first.

*At once.* Then no more than 0.36 prompts per second can pass, and 0.7 were asked for. The published
3.49 s a token at 0.7 fit that P where 256 requests are under way, vLLM's `max_num_seqs`: by
Little's law 256 / (17.3 + 231 x 3.49) = 0.31 / s. They hold 260,000 tokens of KV, of which three
such cards have 97,000.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from molink_sim.paper.experiment import Setting

QUICKER_SOFTWARE_S = 0.03

REQUESTS_AT_ONCE = 256
"""vLLM's default for `max_num_seqs`."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """A change of every row's setting."""

    says: str
    change: Callable[[Setting], Setting]


def _quicker_software(setting: Setting) -> Setting:
    """What ships has a transport of its own, whose software is not guessed."""
    if not setting.system.hop_software_s:
        return setting
    return replace(setting, system=replace(setting.system, hop_software_s=QUICKER_SOFTWARE_S))


ASSUMPTIONS = {
    "software-30ms": Assumption(
        "software takes 30 ms a hop in the compared systems, and not 40", _quicker_software
    ),
    "prompts-alone": Assumption(
        "one batch of prompts is under way in the ring at a time",
        lambda setting: replace(setting, system=replace(setting.system, prompts_alone=True)),
    ),
    "no-kv-limit": Assumption(
        "KV memory has room for all",
        lambda setting: replace(setting, kv_is_bounded=False),
    ),
    "256-at-once": Assumption(
        "users have 256 requests under way at most, and time counts from when one is sent",
        lambda setting: replace(setting, requests_at_once_max=REQUESTS_AT_ONCE),
    ),
    "first-minutes": Assumption(
        "the trace's first minutes, played slower, and not all of it thinned",
        lambda setting: replace(setting, is_stretched=True),
    ),
}
"""Assumptions by their names on the command line."""


def assume(setting: Setting, names: Iterable[str]) -> Setting:
    """The setting with these assumptions. Raises KeyError for a name that there is not."""
    for name in names:
        setting = ASSUMPTIONS[name].change(setting)
    return setting
