"""A proposal holds for one position of one request, once."""

from molink_scheduler.drafting.proposals import Proposals


def test_a_proposal_is_taken_once():
    proposals = Proposals()
    proposals.offer(1, 10, (4, 5, 6))
    assert proposals.take(1, 10, 2) == (4, 5)
    assert proposals.take(1, 10, 2) == ()


def test_a_proposal_for_another_position_is_void():
    proposals = Proposals()
    proposals.offer(1, 10, (4, 5, 6))
    assert proposals.take(1, 11, 3) == ()
    assert proposals.take(1, 10, 3) == ()


def test_the_newest_proposal_counts():
    proposals = Proposals()
    proposals.offer(1, 10, (4,))
    proposals.offer(1, 10, (5,))
    assert proposals.take(1, 10, 3) == (5,)


def test_it_is_gone_with_its_request_alone():
    proposals = Proposals()
    proposals.offer(1, 10, (4,))
    proposals.offer(2, 10, (5,))
    proposals.forget(1)
    proposals.forget(3)
    assert proposals.take(1, 10, 3) == ()
    assert proposals.take(2, 10, 3) == (5,)


def test_none_is_taken_where_none_is_wanted():
    proposals = Proposals()
    proposals.offer(1, 10, (4,))
    assert proposals.take(1, 10, 0) == ()
