"""Answers of users, compared with what they were to be."""

import pytest

from tools.experiments.faults.answers import KINDS, Answer, Request, Verdict, requests

EXPECTED = Answer(tokens=[5, 6, 7], text="abc", finish_reason="length")
REQUEST = Request("stream", {}, 3)


def verdict_of(**got) -> Verdict:
    verdict = Verdict()
    verdict.add(REQUEST, Answer(**got), EXPECTED)
    return verdict


def test_the_same_answer_is_exact():
    found = verdict_of(tokens=[5, 6, 7], text="abc", finish_reason="length")
    assert (found.exact, found.failed, found.wrong) == (1, {}, [])


def test_a_failure_is_told_and_may_come_after_a_part():
    found = verdict_of(tokens=[5], text="a", error="The ring is gone.")
    assert (found.exact, found.failed, found.wrong) == (0, {"The ring is gone.": 1}, [])


@pytest.mark.parametrize(
    "got",
    [
        {"tokens": [5, 6], "text": "ab", "finish_reason": "length"},
        {"tokens": [5, 6], "text": "ab"},
        {"tokens": [5, 6, 7], "text": "abc"},
        {"tokens": [5, 6, 8], "text": "abd", "finish_reason": "length"},
        {"tokens": [5, 6, 7, 7], "text": "abcc", "finish_reason": "length"},
        {"tokens": [5, 8], "text": "ad", "error": "The ring is gone."},
    ],
)
def test_what_is_truncated_or_another_one_is_wrong(got):
    found = verdict_of(**got)
    assert found.exact == 0 and len(found.wrong) == 1


def test_half_of_the_users_are_greedy_in_each_kind():
    asked = requests(16, 80, 4096)
    assert [one.kind for one in asked] == [*KINDS, *KINDS]
    for kind in set(KINDS):
        of_kind = [one for one in asked if one.kind == kind]
        assert 2 * sum("seed" in one.body for one in of_kind) == len(of_kind)
