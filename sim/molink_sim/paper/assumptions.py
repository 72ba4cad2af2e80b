"""What the paper does not say and may be assumed, by name; each changes every row alike.

None is on by itself. docs/benchmarks/simulator.md says which rows come out with which of them. The
paper says nothing for or against the first three; they are what its own numbers have in common:

Bytes of a prompt and of its delays add up to the whole of what decode loses, in all rows to 0.3
requests per second. With B seconds for an undisturbed round and P for a prompt's way over both
hops, 1 / (1 - rate x P) rounds pass where one would, and at 100 Mbps TPOT = B / (1 - rate x P)
gives 2.8 s for P at 0.1, 0.2 and 0.3 requests per second with one B. That is both hops, one after
the other: no prompt is on the second while another is on the first.

So no more than 1 / 2.8 = 0.36 requests per second can pass, and of 0.7 offered per second half are
left. Little's law with the published means says how many there were: at 0.36 / s less what decode
needs, 3.49 s a token and 17 s to the first are 256 requests at a time, vLLM's `max_num_seqs`. They
hold 260,000 tokens of KV, of which three such cards have 97,000.
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
