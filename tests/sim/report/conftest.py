"""Outcomes that nobody simulated: three stages in a ring, decode rounds, prompts in between."""

from random import Random

import pytest

from molink_sim.outcome import Activity, LinkOutcome, Outcome, RequestOutcome, StageOutcome

STAGES = 3


def make_request(random, number, tpot_s):
    tokens, arrived_s = random.randint(2, 40), 5.0 * number
    first_s = arrived_s + random.uniform(0.4, 1.4)
    times_s = [first_s + tpot_s * (token + random.uniform(0, 0.3)) for token in range(tokens)]
    return RequestOutcome(number, 0, arrived_s, 700, tokens, times_s, finished=True)


def make_timeline(seed, rounds):
    random, at_s, bars = Random(seed), 0.0, []
    for number in range(rounds):
        kind = "prefill" if number % 5 == 4 else "decode"
        for stage in range(STAGES):
            for what, seconds in (("stage", 0.012), ("link", 0.004)):
                took_s = seconds * (6 if kind == "prefill" else 1) * random.uniform(0.8, 1.2)
                bars.append(Activity(f"ring 0 {what} {stage}", kind, at_s, at_s + took_s, 4))
                at_s += took_s
        at_s -= 0.03
    return tuple(bars)


def make_outcome(seed=0, count=40, rounds=60, tpot_s=0.12):
    random = Random(seed)
    return Outcome(
        requests=tuple(make_request(random, number, tpot_s) for number in range(count)),
        stages=tuple(StageOutcome(0, stage, 0.2 + stage / 10, 900) for stage in range(STAGES)),
        links=tuple(LinkOutcome(0, link, 0.5 - link / 10, 3_000_000) for link in range(STAGES)),
        duration_s=200.0,
        events=12_345,
        timeline=make_timeline(seed, rounds),
    )


@pytest.fixture(scope="session")
def outcome_of():
    return make_outcome
