"""Whatever drafters do, each question is answered, and what came true is counted."""

import logging
from dataclasses import dataclass, field, replace

import pytest

from molink.stage.drafting.copying import LEARNED_AT_ONCE, Copying
from molink.stage.drafting.drafters import JUDGED_TRIES, Drafters
from molink.stage.health.head_health import with_head
from molink.stage_protocol.health import DrafterHealth, PackingHealth, StageHealth
from molink_scheduler.drafting.asks import Draft, DraftAsk
from molink_scheduler.drafting.proposals import GRAMMAR, TAIL
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.head.settings import HeadSettings, RingTerms
from molink_scheduler.request import SamplingParams

SAMPLING = SamplingParams(max_tokens=100, temperature=0.0)
TEXT = tuple(range(100, 140))
NO_PACKING = PackingHealth("raw", 0, 0, 0.0)


def ask(request_id, start, tokens, width=4, prediction=()):
    return DraftAsk(request_id, start, tuple(tokens), SAMPLING, width, width, tuple(prediction))


@dataclass
class Scripted:
    """Drafter that drafts the same, a token a step, and does what is asked of it else."""

    drafts: tuple[int, ...] = (7, 8, 9)
    name: str = "scripted"
    is_busy: bool = False
    step_s: float = 0.002
    share_min: float = 0.05
    is_willing: bool = True
    fails_in: str = ""
    learned: dict[int, list[int]] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)

    def _maybe_fail(self, where):
        if self.fails_in == where:
            raise RuntimeError(f"broken in {where}")

    def learn(self, ask):
        self._maybe_fail("learn")
        self.learned.setdefault(ask.request_id, []).extend(ask.tokens)

    def begin(self, ask):
        self._maybe_fail("begin")
        if self.is_willing:
            self.asked[ask.request_id] = 0
        return self.is_willing

    def step(self):
        self._maybe_fail("step")
        self.asked = {one: made + 1 for one, made in self.asked.items()}
        done = [one for one, made in self.asked.items() if made >= len(self.drafts)]
        for one in done:
            del self.asked[one]
        return dict.fromkeys(done, self.drafts)

    def forget(self, request_id):
        self._maybe_fail("forget")
        self.learned.pop(request_id, None)
        self.asked.pop(request_id, None)

    def clear(self):
        self.learned.clear()
        self.asked.clear()


def answers(drafters):
    """All answers until nobody is asked any more, and the takes that it took."""
    found, takes = [], 0
    while drafters.is_busy:
        takes += 1
        assert takes < 100
        if (drafted := drafters.take()) is not None:
            found += drafted.drafts
    return found, takes


def test_a_question_is_answered_a_depth_at_a_time():
    drafters = Drafters.of(Scripted())
    drafters.ask((ask(1, 0, TEXT),))
    assert drafters.take() is None
    assert drafters.take() is None
    drafted = drafters.take()
    assert drafted.drafts == (Draft(1, len(TEXT), (7, 8, 9), "scripted"),)
    assert drafted.step_s == 0.002
    assert not drafters.is_busy
    assert drafters.take() is None


def test_no_more_is_answered_than_was_asked_for():
    drafters = Drafters.of(Scripted())
    drafters.ask((ask(1, 0, TEXT, width=2),))
    assert answers(drafters)[0] == [Draft(1, len(TEXT), (7, 8), "scripted")]


def test_who_has_nothing_to_say_is_passed_over_and_learns_all_the_same():
    silent, speaking = Scripted(is_willing=False), Scripted()
    drafters = Drafters.of(silent, speaking)
    drafters.ask((ask(1, 0, TEXT),))
    assert answers(drafters)[0] == [Draft(1, len(TEXT), (7, 8, 9), "scripted")]
    assert silent.learned == speaking.learned == {1: list(TEXT)}


def test_a_question_that_nobody_can_answer_is_answered_with_nothing():
    drafters = Drafters.of(Scripted(is_willing=False))
    drafters.ask((ask(1, 0, TEXT), ask(2, 0, TEXT[:3])))
    assert answers(drafters) == ([Draft(1, len(TEXT), ()), Draft(2, 3, ())], 1)
    assert Drafters.of().take() is None


def test_what_is_copied_comes_before_what_a_model_guesses():
    drafters = Drafters.of(Copying(), Scripted())
    drafters.ask((ask(1, 0, (*TEXT, *TEXT[:9])), ask(2, 0, TEXT)))
    assert drafters.take().drafts == (Draft(1, 49, TEXT[9:13], "copy"),)
    assert answers(drafters)[0] == [Draft(2, len(TEXT), (7, 8, 9), "scripted")]


@pytest.mark.parametrize("where", ["learn", "begin", "step"])
def test_a_drafter_that_fails_is_off_until_the_next_epoch_with_one_sentence(caplog, where):
    failing = Scripted()
    drafters = Drafters.of(failing)
    drafters.ask((ask(1, 0, TEXT),))
    failing.fails_in = where
    drafters.ask((ask(2, 0, TEXT),))
    with caplog.at_level(logging.WARNING):
        assert {one.request_id: one.token_ids for one in answers(drafters)[0]} == {1: (), 2: ()}
        for start in range(len(TEXT), len(TEXT) + 5):
            drafters.ask((ask(1, start, (5,)),))
            assert answers(drafters)[0] == [Draft(1, start + 1, ())]
            drafters.forget(2)
    assert len([one for one in caplog.messages if "scripted" in one]) <= 1
    failing.fails_in = ""
    drafters.begin_epoch()
    drafters.ask((ask(1, 0, TEXT),))
    assert answers(drafters)[0] == [Draft(1, len(TEXT), (7, 8, 9), "scripted")]


def test_forgetting_ends_a_question():
    drafters = Drafters.of(Scripted())
    drafters.ask((ask(1, 0, TEXT), ask(2, 0, TEXT)))
    drafters.forget(1)
    drafters.forget(9)
    assert answers(drafters)[0] == [Draft(2, len(TEXT), (7, 8, 9), "scripted")]


def test_an_epoch_ends_all_questions():
    drafters = Drafters.of(Scripted())
    drafters.ask((ask(1, 0, TEXT),))
    drafters.begin_epoch()
    assert not drafters.is_busy


def figures(drafters):
    """What a stage tells of its drafters, beside what a head tells."""
    blank = StageHealth(0, 0, 0, 0, 0, 0, 0, NO_PACKING, NO_PACKING, 0, None, None, 0, 0, ())
    told = drafters.after(lambda health, source, now: replace(health, steps=3))(blank, None, 0.0)
    assert told.steps == 3
    return told.drafters


def test_what_came_true_is_counted_by_drafter():
    drafters = Drafters.of(Copying(), Scripted())
    assert figures(drafters) == ()
    drafters.ask((ask(1, 0, TEXT),))
    answers(drafters)
    for tokens in ((7, 8, 3), (4,), (7, 8, 9, 2), (7,)):
        start = drafters_known(drafters)
        drafters.ask((ask(1, start, tokens),))
        answers(drafters)
    # 2 of 3; 0 of 1; 3 of 3; and one that was cut behind its first: 1 of 1.
    assert figures(drafters) == (DrafterHealth("scripted", 4, 12, 3 + 1 + 3 + 1, 2 + 0 + 3 + 1),)
    drafters.begin_epoch()
    assert figures(drafters) == ()


def drafters_known(drafters):
    return len(drafters._watched[-1].drafter.learned[1])


def test_a_drafter_that_is_hardly_ever_right_is_off_as_a_wrong_load_would_be(caplog):
    drafters, start, tokens = Drafters.of(Scripted()), 0, TEXT
    with caplog.at_level(logging.WARNING):
        for round_ in range(JUDGED_TRIES + 2):
            drafters.ask((ask(1, start, tokens),))
            (answered,) = answers(drafters)[0]
            assert bool(answered.token_ids) == (round_ < JUDGED_TRIES)
            start, tokens = answered.position, (3,)
    (sentence,) = caplog.messages
    assert f"0 of {JUDGED_TRIES}" in sentence
    assert "read wrongly" in sentence


def test_copying_is_never_off_for_what_is_wrong(caplog):
    drafters, start = Drafters.of(Copying()), 0
    tokens = [*TEXT[:8], 1, *TEXT[:8]]
    for round_ in range(2 * JUDGED_TRIES):
        drafters.ask((ask(1, start, tokens),))
        (answered,) = answers(drafters)[0]
        assert answered.token_ids
        start += len(tokens)
        tokens = [2 + round_ % 2, *TEXT[:8]]
    assert caplog.messages == []


def test_a_long_prompt_is_learned_in_pieces_and_copied_from_then_on():
    copying = Copying()
    text = list(range(3 * LEARNED_AT_ONCE))
    copying.learn(ask(1, 0, text))
    assert not copying.begin(ask(1, 0, text))
    rounds, position = 0, len(text)
    while True:
        new = ask(1, position, [rounds])
        copying.learn(new)
        position += 1
        rounds += 1
        if copying.begin(new):
            break
        assert rounds < 20
    assert rounds == 8  # Two more pieces, and eight tokens to match.
    assert copying.step() == {1: (8, 9, 10, 11)}


def test_a_prediction_is_copied_up_to_its_end():
    copying = Copying()
    first = ask(1, 0, (5, *TEXT[:7]), prediction=TEXT[:13])
    copying.learn(first)
    assert not copying.begin(first)
    second = ask(1, 8, TEXT[7:8])
    copying.learn(second)
    assert copying.begin(second)
    assert copying.step() == {1: TEXT[8:12]}
    third = ask(1, 9, TEXT[8:12])
    copying.learn(third)
    assert copying.begin(third)
    assert copying.step() == {1: TEXT[12:13]}


def test_a_long_prediction_is_learned_in_pieces_before_the_prompt():
    copying, prediction = Copying(), range(2 * LEARNED_AT_ONCE)
    copying.learn(ask(1, 0, prediction[:4], prediction=prediction))
    copying.learn(ask(1, 4, prediction[4:8]))
    early = ask(1, 8, prediction[8:12])
    assert not copying.begin(early)
    copying.learn(early)
    assert copying.begin(early)
    assert copying.step() == {1: tuple(prediction[12:16])}


def test_nothing_is_copied_of_a_request_that_was_not_heard_from_its_start():
    copying = Copying()
    late = ask(1, 30, TEXT)
    copying.learn(late)
    assert not copying.begin(late)


def test_figures_of_the_tail_stand_beside_and_a_wrong_load_of_its_layer_is_told_once(caplog):
    head = HeadScheduler(HeadSettings(RingTerms(64, draft_width_max=4, drafts_at_tail=True)))
    blank = StageHealth(0, 0, 0, 0, 0, 0, 0, NO_PACKING, NO_PACKING, 0, None, None, 0, 0, ())
    drafters = Drafters.of(Copying())
    tell = drafters.after(with_head)
    tallies = head.decode.drafts.tallies
    tallies[GRAMMAR].judged(3, 3)
    assert tell(blank, head, 0.0).drafters == (DrafterHealth("grammar", 1, 3, 3, 3),)
    for _ in range(JUDGED_TRIES):
        tallies[TAIL].judged(4, 0)
    with caplog.at_level(logging.WARNING):
        told = [tell(blank, head, 0.0).drafters for _ in range(2)]
    assert [one.name for one in told[0]] == ["tail", "grammar"] and told[0] == told[1]
    assert [record.message for record in caplog.records] == [
        "Drafts of the tail are off until the ring's next epoch: 0 of 200 were right, as if its "
        "layer's weights were read wrongly."
    ]
    drafters.begin_epoch()
    tell(blank, head, 0.0)
    assert len(caplog.records) == 2
