"""What is asked of a card to record a step, in which order; a stand-in takes torch's place."""

from contextlib import contextmanager

import pytest
import torch

from molink.engine.step.graphs.recording import SWITCH, CudaRecorder, recorder_on

CARD = torch.device("cuda:0")


class Stream:
    def __init__(self, cuda, device, priority):
        self.cuda, self.device, self.priority = cuda, device, priority

    def wait_stream(self, other):
        self.cuda.log.append(f"waits for {other}")

    def synchronize(self):
        self.cuda.log.append("host waits")


class Graph:
    def __init__(self):
        self.replays = 0

    def pool(self):
        return "pool"

    def replay(self):
        self.replays += 1


class StandInCuda:
    """Torch's module as far as a recorder asks it."""

    CUDAGraph = Graph

    def __init__(self):
        self.log = []

    def Stream(self, device, priority):
        return Stream(self, device, priority)

    def current_stream(self, device):
        return f"the current one of {device}"

    @contextmanager
    def stream(self, stream):
        self.log.append("in its stream")
        yield
        self.log.append("out of it")

    @contextmanager
    def graph(self, graph, **options):
        self.log.append(options)
        yield
        self.log.append("recorded")


def record(cuda, recorder):
    return recorder.record(lambda: cuda.log.append("computes") or torch.ones(2))


def test_two_runs_warm_up_in_a_stream_of_its_own_before_one_is_recorded():
    cuda = StandInCuda()
    recorder = CudaRecorder(CARD, cuda)
    recording = record(cuda, recorder)
    options = dict(pool=None, stream=recorder.stream, capture_error_mode="thread_local")
    assert recorder.stream.priority < 0
    assert cuda.log == [
        "waits for the current one of cuda:0",
        "in its stream",
        *("computes", "computes"),
        "out of it",
        "host waits",
        options,
        "computes",
        "recorded",
    ]
    assert recording.out.equal(torch.ones(2))


def test_all_recordings_share_the_memory_of_the_first():
    cuda = StandInCuda()
    recorder = CudaRecorder(CARD, cuda)
    first, second = record(cuda, recorder), record(cuda, recorder)
    assert [one["pool"] for one in cuda.log if isinstance(one, dict)] == [None, "pool"]
    second.replay()
    second.replay()
    graphs = [recording.replay.__self__ for recording in (first, second)]
    assert [graph.replays for graph in graphs] == [0, 2]


@pytest.mark.parametrize("value", [None, "0", "1"])
def test_a_cpu_records_nothing_and_a_card_unless_it_is_switched_off(monkeypatch, value):
    if value is not None:
        monkeypatch.setenv(SWITCH, value)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: device)
    assert recorder_on(torch.device("cpu")) is None
    assert (recorder_on(CARD) is None) == (value == "0")
