from random import Random

import pytest
import torch

from molink.engine.device.streams import HostMemory
from molink.engine.device.transfers import CardTransfers, HostTransfers, transfers_on
from molink_scheduler.batch import Admission, Batch, BatchClass, Span
from molink_scheduler.request import SamplingParams
from tests.engine.cpu_stages import cpu_stage
from tests.engine.device.stand_in_streams import StandInStreams
from tests.engine.tiny_models import LAYERS, save_tiny

DTYPE = torch.float32


def transfers(random: Random | None = None) -> CardTransfers:
    return CardTransfers(StandInStreams(random), HostMemory(pins=False))


def rows(number: float, count: int = 2) -> torch.Tensor:
    return torch.full((count, 3), float(number))


def doubled(way: CardTransfers, rows_TD: torch.Tensor) -> torch.Tensor:
    """What the card makes of the rows, in its own time."""
    result_TD = torch.full_like(rows_TD, float("nan"))
    streams = way.streams
    streams.launch(streams.computing, lambda: torch.mul(rows_TD, 2, out=result_TD))
    return result_TD


def step(way: CardTransfers, number: float, count: int = 2, inside=lambda: None):
    """Rows in, doubled, and out; the same tensor is overwritten at once, as a link's may be."""
    with way.timed() as time:
        sent_TD = rows(number, count)
        on_card_TD = way.rows_in(sent_TD, DTYPE)
        sent_TD.fill_(-1)
        inside()
        got_TD = way.rows_out(doubled(way, on_card_TD))
    return got_TD, time


def test_rows_go_through_streams_of_their_own_and_the_host_waits_once():
    way = transfers()
    got_TD, _ = step(way, 5)
    assert torch.equal(got_TD, rows(10))
    assert way.streams.log == [
        "copy in to card",
        "computing waits for to card",
        "to host waits for computing",
        "copy in to host",
        "host waits for to host",
        "host waits for to host",
    ]
    assert [stream.name for _, stream in way.streams.kept] == ["computing", "to host"]


@pytest.mark.parametrize("seed", range(20))
def test_no_buffer_is_written_while_it_is_read(seed):
    """Steps of all sizes, some inside others, on a card that does things when it likes."""
    random = Random(seed)
    way = transfers(random)
    held = []

    def nested(depth: int = 0) -> None:
        for _ in range(random.randint(0, 3)):
            number, count = random.randint(1, 99), random.randint(1, 40)
            inside = (lambda: nested(depth + 1)) if depth < 2 else lambda: None
            got_TD, _ = step(way, number, count, inside)
            held.append((got_TD, number))

    for _ in range(8):
        nested()
    assert held
    for got_TD, number in held:  # A link reads what it was handed much later.
        assert torch.equal(got_TD, rows(2 * number, len(got_TD)))


def test_a_buffer_that_is_not_waited_for_would_show(monkeypatch):
    way = transfers()
    monkeypatch.setattr("tests.engine.device.stand_in_streams.Event.synchronize", lambda _: None)
    on_card = [way.rows_in(rows(number), DTYPE) for number in range(3)]
    way.streams.run_until(way.streams.record(way.streams.computing))
    assert not torch.equal(on_card[0], rows(0))


def test_a_step_takes_its_own_time_and_not_that_of_steps_inside_it():
    way = transfers()
    streams = way.streams
    times = []

    def decode() -> None:
        with way.timed() as time:
            streams.launch(streams.computing, lambda: None, took_s=0.25)
        times.append(time.seconds)

    with way.timed() as prompt:
        streams.launch(streams.computing, lambda: None, took_s=8)
        decode()
        decode()
        streams.launch(streams.computing, lambda: None, took_s=4)
        assert prompt.seconds is None
    assert times == [0.25, 0.25], "what they waited for is not theirs"
    assert prompt.seconds == 12


def test_a_step_that_hands_nothing_out_ends_when_it_is_computed():
    way = transfers()
    with way.timed() as outer:
        step(way, 1)
        way.streams.launch(way.streams.computing, lambda: None, took_s=5)
    assert outer.seconds == 5 and way.streams.log[-1] == "host waits for computing"


def test_a_step_that_fails_is_forgotten():
    way = transfers()
    with pytest.raises(torch.OutOfMemoryError), way.timed():
        way.rows_in(rows(1), DTYPE)
        raise torch.OutOfMemoryError
    got_TD, time = step(way, 4)
    assert torch.equal(got_TD, rows(8)) and time.seconds == 3


def test_a_prompt_is_launched_two_layers_ahead_and_no_further():
    way, ahead, launched, done = transfers(), [], [], []
    with way.timed():
        before_layer = way.bounded(lambda: ahead.append(len(launched) - len(done)))
        while len(launched) < 9:
            before_layer()
            launched.append(1)
            way.streams.launch(way.streams.computing, lambda: done.append(1))
    assert ahead == [0, 1, 2, 2, 2, 2, 2, 2, 2]
    assert len(done) == 9


def test_decode_between_two_layers_waits_for_none_of_them():
    way, done = transfers(), []
    streams = way.streams

    def layer(name: str) -> None:
        streams.launch(streams.computing, lambda: done.append(name))

    with way.timed():
        layer("first")
        layer("second")
        with way.timed(is_decode=True):
            layer("decode")
        assert done == ["decode"], "it went first, and the host has seen its end"
        layer("third")
    assert done == ["decode", "first", "second", "third"]
    assert "decoding waits for computing" not in streams.log


def test_decode_after_whatever_was_done_to_pools_comes_after_it():
    way, done = transfers(), []
    way.streams.launch(way.streams.computing, lambda: done.append("cleared"))
    with way.timed(is_decode=True):
        way.streams.launch(way.streams.computing, lambda: done.append("decode"))
    assert done == ["cleared", "decode"]
    assert way.streams.computing.name == "computing"


def test_steps_of_a_stage_take_the_streams_of_their_kind(tmp_path):
    save_tiny("llama", tmp_path)
    stage = cpu_stage(tmp_path, range(2))
    stage._transfers = CardTransfers(StreamsOfACpu(), HostMemory(pins=False))
    streams, decode = stage._transfers.streams, (Span(0, 7, 8, samples=True),)
    inside = []

    def between_layers() -> None:
        inside.append(streams.computing.name)

    stage.step(ADMITTED, [5, 6, 7, 8, 9, 10, 11], None, between_layers)
    assert inside == ["computing"] * 2
    stage.step(Batch(1, BatchClass.DECODE, 0, decode), [5], None, between_layers)
    assert inside[2:] == ["decoding"] * 2


def test_rows_in_another_format_become_the_cards():
    way = transfers()
    got_TD = way.rows_in(rows(1.5).bfloat16(), torch.float16)
    assert got_TD.dtype is torch.float16
    assert way.streams.kept[0][0].dtype is torch.bfloat16, "converted there, not on the host"


def test_a_cpu_copies_nothing():
    way = transfers_on(torch.device("cpu"))
    assert isinstance(way, HostTransfers)
    given_TD = rows(3)
    with way.timed() as time:
        assert way.rows_in(given_TD, DTYPE) is given_TD
        assert way.rows_out(given_TD) is given_TD and way.read(given_TD) is given_TD
    assert time.seconds is None


def test_memory_that_cannot_be_pinned_is_taken_as_it_comes_and_told_once(monkeypatch, caplog):
    plain, asked = torch.empty, []

    def empty(*arguments, pin_memory=False, **options):
        asked.append(pin_memory)
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory\nand much advice")
        return plain(*arguments, **options)

    monkeypatch.setattr(torch, "empty", empty)
    memory = HostMemory(pins=True)
    assert [len(memory.empty((4,), torch.uint8)) for _ in range(2)] == [4, 4]
    assert asked == [True, False, False]
    assert memory.refusal == "CUDA error: out of memory"
    assert len(caplog.records) == 1 and "out of memory" in caplog.records[0].message


# -- whole stages ----------------------------------------------------------------------------------


class StreamsOfACpu(StandInStreams):
    """What a stage computes here reads its rows at once; results are copied late."""

    def hold(self, stream, event):
        super().hold(stream, event)
        if stream is self.computing:
            self.run_until(event)


SPAN = Span(0, 0, 7, samples=True)
ADMITTED = Batch(
    0, BatchClass.PREFILL, 0, (SPAN,), (Admission(0, 7, 8, SamplingParams(8, temperature=0.0)),)
)


def answer(stages) -> list:
    """Rows of all stages but the last, and its tokens."""
    hidden_TD, seen = None, []
    for stage in stages:
        output = stage.step(ADMITTED, [5, 6, 7, 8, 9, 10, 11], hidden_TD)
        hidden_TD = output.hidden_TD
        seen.append(output.drawn if hidden_TD is None else hidden_TD.tolist())
        assert (output.computed_s is None) == isinstance(stage._transfers, HostTransfers)
    return seen


def test_stages_hand_on_the_same_rows_through_a_cards_streams(tmp_path):
    save_tiny("llama", tmp_path)
    stages = [cpu_stage(tmp_path, part) for part in (range(2), range(2, 4), range(4, LAYERS))]
    plain = answer(stages)
    for stage in stages:
        stage._transfers = CardTransfers(StreamsOfACpu(), HostMemory(pins=False))
    assert answer(stages) == plain
    copies = [stage._transfers.streams.log.count("copy in to host") for stage in stages]
    assert copies == [1, 1, 1]
