from molink.api.stopwatch import Stopwatch


def test_times_count_from_arrival_and_between_tokens():
    clock = iter([10.5, 11.0, 12.5])
    stopwatch = Stopwatch(lambda: next(clock), arrived_s=10.0)
    assert stopwatch.timing() == {"ttft_s": None, "tpot_s": None, "total_s": None}
    stopwatch.tokens_came(1)
    assert stopwatch.timing() == {"ttft_s": 0.5, "tpot_s": None, "total_s": 0.5}
    stopwatch.tokens_came(1)
    stopwatch.tokens_came(3)
    assert stopwatch.timing() == {"ttft_s": 0.5, "tpot_s": 0.5, "total_s": 2.5}
