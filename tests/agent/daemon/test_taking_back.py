"""When a stage is ended although a ring counts on it."""

from molink_agent.daemon.taking_back import TAKE_BACK_S, TakingBack


def test_a_ring_has_its_time_from_the_moment_that_the_owner_wants_his_pc():
    back = TakingBack()
    assert not back.is_due(0.0, wanted=True, alone=False)
    assert not back.is_due(TAKE_BACK_S, wanted=True, alone=False)
    assert back.is_due(TAKE_BACK_S + 1, wanted=True, alone=False)


def test_an_owner_who_lends_again_starts_it_anew():
    back = TakingBack()
    back.is_due(0.0, wanted=True, alone=False)
    assert not back.is_due(TAKE_BACK_S + 1, wanted=False, alone=True)
    assert not back.is_due(TAKE_BACK_S + 2, wanted=True, alone=False)


def test_without_a_coordinator_nobody_is_waited_for():
    assert TakingBack().is_due(0.0, wanted=True, alone=True)
