import pytest

from molink.engine.step import step_timing
from molink.engine.step.stage import StageExecutor
from molink.engine.step.step_timing import StepTimer
from molink_scheduler.batch import BatchClass
from tests.engine.cpu_stages import cpu_stage
from tests.engine.tiny_models import LAYERS, save_tiny


@pytest.fixture(scope="module", params=[range(2), range(2, 4), range(4, LAYERS)], ids=str)
def stage(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("llama")
    save_tiny("llama", directory)
    return cpu_stage(directory, request.param, kv_tokens=256)


@pytest.fixture
def steps(stage, monkeypatch):
    """What was computed: class, and the spans' bounds."""
    seen = []
    step = StageExecutor.step

    def recorded(self, batch, *arguments):
        seen.append((batch.batch_class, [(span.start, span.end) for span in batch.spans]))
        return step(self, batch, *arguments)

    monkeypatch.setattr(StageExecutor, "step", recorded)
    monkeypatch.setattr(step_timing, "MEASURE_S", 0.0)
    monkeypatch.setattr(step_timing, "FILL_SPAN_TOKENS", 8)
    return seen


def test_decode_steps_attend_to_kv_that_was_computed(stage, steps):
    timer = StepTimer(stage)
    timed = timer.decode(rows=2, context=20)
    assert (timed.rows, timed.context) == (2, 20) and timed.step_s > 0
    fills = [(BatchClass.PREFILL, [bounds]) for bounds in ((0, 8), (8, 16), (16, 20))]
    assert steps[:6] == fills * 2
    assert set(map(str, steps[6:])) == {str((BatchClass.DECODE, [(19, 20)] * 2))}
    assert len(steps[6:]) == 1 + step_timing.REPEATS_MIN
    timer.decode(rows=3, context=10)
    assert len(steps) == 12 + 2 + 6, "two requests stay filled"
    timer.forget()
    assert stage.kv.tokens_used == 0


def test_prefill_spans_stand_behind_what_came_before(stage, steps):
    timer = StepTimer(stage)
    timed = timer.prefill(rows=12, before=8)
    assert (timed.rows, timed.context) == (12, 8)
    assert steps[0] == (BatchClass.PREFILL, [(0, 8)])
    assert set(map(str, steps[1:])) == {str((BatchClass.PREFILL, [(8, 20)]))}
    assert stage.kv.tokens_used == 0


def test_windows_that_have_moved_on_are_no_hindrance(tmp_path):
    """Steps are repeated, and shorter contexts follow longer ones."""
    save_tiny("gemma3_text", tmp_path)
    stage = cpu_stage(tmp_path, range(LAYERS), kv_tokens=1024)
    timer = StepTimer(stage)
    assert stage.windows.layers
    assert timer.decode(rows=2, context=200).step_s > 0
    assert timer.decode(rows=2, context=60).step_s > 0
    assert timer.prefill(rows=40, before=120).step_s > 0
