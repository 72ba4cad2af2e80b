from molink.config.link_schedule import LinkSchedule
from tools.experiments.links.changing_link import LinkSteps

STEPS = LinkSteps((20.0, 5.0, 20.0), step_s=10.0, lead_s=4.0, one_way_s=0.03)


def test_the_product_reads_what_is_written(tmp_path):
    STEPS.write(tmp_path / "steps.csv")
    schedule = LinkSchedule.parse(str(tmp_path / "steps.csv"))
    assert [step.at_s for step in schedule.steps] == [0, 14, 24], "the first lasts a lead longer"
    assert [step.shape.rate_mbps for step in schedule.steps] == [20, 5, 20]
    assert {step.shape.one_way_ms for step in schedule.steps} == {30}


def test_times_count_from_the_end_of_the_lead():
    assert STEPS.changes_s == [10.0, 20.0] and STEPS.duration_s == 30.0
    steady = [at for at in range(33) if STEPS.is_steady(at, 3.0)]
    assert steady == [*range(3, 10), *range(13, 20), *range(23, 30)]
