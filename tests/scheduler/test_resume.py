"""Who goes on in a ring's next epoch, and from where."""

import pytest

from molink_scheduler.resume import RESUMED_MAX, Resume, common_runs, requests_to_resume


def has_all(request_id: int, tokens: int) -> bool:
    return True


def has_none(request_id: int, tokens: int) -> bool:
    return False


def test_the_shortest_go_on_first_and_those_without_kv_do_not():
    assert requests_to_resume({1: 30, 2: 0, 3: 7}, 64) == ((3, 7), (1, 30))


def test_no_more_go_on_than_there_is_room_for():
    held = {1: 30, 2: 40, 3: 7, 4: 17}
    assert requests_to_resume(held, 96) == ((3, 7), (4, 17), (1, 30))
    assert requests_to_resume(held, 95) == requests_to_resume(held, 96)
    assert requests_to_resume(held, 80) == ((3, 7), (4, 17), (1, 30))
    assert requests_to_resume(held, 79) == ((3, 7), (4, 17), (1, 30))
    assert requests_to_resume(held, 64) == ((3, 7), (4, 17))


def test_of_too_many_the_longest_are_computed_anew():
    held = {request_id: 1 + request_id for request_id in range(RESUMED_MAX + 5)}
    listed = requests_to_resume(held, 1 << 30)
    assert len(listed) == RESUMED_MAX and listed[-1] == (RESUMED_MAX - 1, RESUMED_MAX)


@pytest.mark.parametrize(
    "resume, has_rows, missing",
    [
        (Resume(((1, 5), (2, 9))), has_none, (2,)),
        (Resume(((1, 5), (2, 9)), next_held=()), has_all, (2,)),
        (Resume(((1, 5), (2, 9)), next_held=()), has_none, (1, 2)),
        (Resume(((1, 5), (2, 9)), held=(), next_held=()), has_none, ()),
    ],
)
def test_a_stage_says_what_it_lacks(resume, has_rows, missing):
    assert resume.missing({1: 5, 2: 8}, has_rows) == missing
    assert dict(resume.without(missing).requests).keys() == {1, 2} - set(missing)


@pytest.mark.parametrize(
    "requests", [((1, 0),), ((1, 3), (1, 4)), tuple((one, 1) for one in range(RESUMED_MAX + 1))]
)
def test_what_cannot_be_is_refused(requests):
    with pytest.raises(ValueError):
        Resume(requests)


def test_what_a_peer_reports_in_any_order_is_taken_in_a_rising_one():
    report = ((7, 3), (2, 4), (4, 1), (5, 4), (20, 0), (1, 1))
    assert common_runs([report]) == ((1, 1), (2, 4), (6, 3), (9, 1))
    assert common_runs([report, ((3, 5), (3, 9))]) == ((3, 3), (6, 2), (8, 1), (9, 1))
