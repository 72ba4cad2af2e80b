import json

import pytest

from molink.errors import UserError
from molink_scheduler.token_ids import TOKEN_BYTES, tokens_of
from molink_sim.cache.trace import at_rate, rate_per_s, read_cache_trace, within

LINE = {"timestamp": 0, "input_length": 700, "output_length": 3, "hash_ids": [1, 2]}


def write(path, *lines):
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines))
    return path


def test_requests_keep_their_lengths_and_share_conversations(tmp_path):
    lines = [
        LINE | {"timestamp": 1000 * number, "hash_ids": hashes}
        for number, hashes in enumerate([[0, 1], [0, 2]] * 10)
    ]
    found = read_cache_trace(write(tmp_path / "trace.jsonl", *lines))
    assert [one.at_s for one in found] == list(range(20))
    assert {(one.input_tokens, one.output_tokens, one.block_count) for one in found} == {
        (700, 3, 2)
    }
    one, other, *again = (request.conversation for request in found)
    assert one != other and again == [one, other] * 9


def test_prompts_are_alike_as_far_as_their_blocks_and_as_long_as_they_are(tmp_path):
    lines = [LINE, LINE | {"hash_ids": [1, 3]}]
    one, other = (
        request.prompt for request in read_cache_trace(write(tmp_path / "trace.jsonl", *lines))
    )
    assert len(one) == len(other) == 700 * TOKEN_BYTES
    alike = 512 * TOKEN_BYTES
    assert one[:alike] == other[:alike] and one[alike:] != other[alike:]
    assert 0 not in tokens_of(one), "that is what answers are made of"


def test_turns_that_came_in_batches_are_spread_in_order(tmp_path):
    lines = [LINE | {"timestamp": 3000 * (number // 10)} for number in range(60)]
    path = write(tmp_path / "trace.jsonl", *lines)
    found = read_cache_trace(path, jitter_seed=1)
    times = [one.at_s for one in found]
    assert times == sorted(times) and len(set(times)) == 60
    assert read_cache_trace(path, jitter_seed=1) == found


@pytest.mark.parametrize(
    "line, words",
    [
        ("{", "line 2: must be"),
        ("[]", "line 2: must be"),
        (LINE | {"hash_ids": "12"}, "line 2: must be"),
        (LINE | {"hash_ids": [1, 2**31]}, "below 2"),
        (LINE | {"timestamp": -1}, "none negative"),
        (LINE | {"hash_ids": [1]}, "line 2: .* 2 blocks, it has 1"),
        (LINE | {"input_length": 0, "hash_ids": []}, "1 token or more"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, words):
    path = write(tmp_path / "trace.jsonl", LINE, line)
    with pytest.raises(UserError, match=words) as refusal:
        read_cache_trace(path)
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_no_trace_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        read_cache_trace(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="no requests"):
        read_cache_trace(write(tmp_path / "empty.jsonl", ""))
    with pytest.raises(UserError, match="go back"):
        read_cache_trace(write(tmp_path / "back.jsonl", LINE | {"timestamp": 5}, LINE))
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="no JSONL"):
        read_cache_trace(tmp_path / "binary.jsonl")


def test_a_lower_rate_leaves_whole_conversations(trace):
    requests = read_cache_trace(trace)
    few, more = (at_rate(requests, share * rate_per_s(requests), 0) for share in (0.3, 0.6))
    assert 0 < len(few) < len(more) < len(requests)
    assert set(few) < set(more)
    kept = {one.conversation for one in few}
    assert few == [one for one in requests if one.conversation in kept]


def test_a_higher_rate_plays_all_faster(trace):
    requests = read_cache_trace(trace)
    faster = at_rate(requests, 2 * rate_per_s(requests), 0)
    assert [one.blocks for one in faster] == [one.blocks for one in requests]
    assert rate_per_s(faster) == pytest.approx(2 * rate_per_s(requests))


def test_requests_that_no_ring_holds_are_left_out(trace):
    requests = read_cache_trace(trace)
    assert 0 < len(within(requests, 2000)) < len(requests)
    with pytest.raises(UserError, match="more capacity"):
        within(requests, 10)
