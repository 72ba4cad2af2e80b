"""Step times of nodes that have timed this model, another one, or only formats of weights."""

from dataclasses import replace

import pytest

from molink.checkpoint.model_config import model_shape
from molink.checkpoint.model_shape import WeightBits
from molink.control.messages.payloads import FormatCost, Profile
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.planning.step_times import steps_of
from molink.hardware.format_times import FormatTimes
from molink.hardware.gpu import measured_device
from molink.hardware.roofline import estimated_times
from tests.coordinator.examples import HERE, PROFILE, STEPS

MODEL = model_shape("llama-3-8b")
INT4 = WeightBits(4, 2 / 128, "int4_g128")
FOUR_BITS = replace(MODEL, weights=INT4, attention_weights=INT4)
PLAIN = FormatCost(format="plain", read_s=0.05, row_s=0.01)
FORMATS = (PLAIN, FormatCost(format="int4_g128", read_s=0.02, row_s=0.03))
ANNA = "a" * 16


def node(**profile):
    book = NodeBook()
    book.take(ANNA, HERE, 0.0)
    book.take(ANNA, PROFILE.model_copy(update=profile), 0.0)
    return book.node(ANNA)


def test_what_was_timed_of_the_model_itself_counts():
    assert steps_of(node(formats=FORMATS), "m", FOUR_BITS) == STEPS


@pytest.mark.parametrize("steps", [None, STEPS])
def test_until_then_the_format_of_its_weights_does(steps):
    of_another = node(steps=steps, formats=FORMATS)
    assert of_another.is_measured and not of_another.has_timed("other")
    found = steps_of(of_another, "other", FOUR_BITS)
    times = {one.format: FormatTimes(one.read_s, one.row_s) for one in FORMATS}
    layer = estimated_times(FOUR_BITS, measured_device("cpu", times, 2), 128)
    assert found.decode_fixed_s == pytest.approx(layer.decode_fixed_s)
    assert found.prefill_row_s == pytest.approx(layer.prefill_row_s)
    plain = steps_of(of_another, "other", MODEL)
    assert found.decode_fixed_s < plain.decode_fixed_s
    assert found.prefill_row_s > 2 * plain.prefill_row_s


def test_an_agent_that_tells_no_formats_is_planned_as_before():
    assert steps_of(node(), "other", FOUR_BITS) == STEPS


@pytest.mark.parametrize(
    "formats", [(), FORMATS[1:], (FormatCost(format="plain", read_s=0.0, row_s=0.0),)]
)
def test_formats_without_plain_weights_measure_nothing(formats):
    assert not node(steps=None, formats=formats).is_measured


def test_what_a_node_tells_of_formats_makes_no_time_beyond_a_measured_one():
    lying = FormatCost(format="plain", read_s=3600.0, row_s=3600.0)
    steps = steps_of(node(steps=None, formats=(lying,)), "m", model_shape("llama-2-70b"))
    assert steps.decode_row_s <= 3600
    quick = FormatCost(format="plain", read_s=5e-324, row_s=5e-324)
    assert steps_of(node(steps=None, formats=(quick,)), "m", MODEL).decode_row_s >= 0


def test_a_profile_of_an_older_agent_is_read_and_an_older_coordinator_reads_ours():
    older = PROFILE.model_dump(exclude={"formats"})
    assert Profile.model_validate(older) == PROFILE
    newer = older | {"formats": [PLAIN.model_dump()], "of_tomorrow": 1}
    assert Profile.model_validate(newer).formats == (PLAIN,)
