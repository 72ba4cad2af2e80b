import torch
from hypothesis import given
from hypothesis import strategies as st

from molink.executor.attention.step_plan import PADDING_MAX, KeyRange, group_decodes

SLOTS = 4096


@st.composite
def key_ranges(draw):
    """Ranges of sequences that do not overlap, in any row order."""
    ranges, slot = [], 0
    for tokens in draw(st.lists(st.integers(1, 60), max_size=12)):
        slot += 16 * draw(st.integers(0, 2))
        ranges.append((slot, tokens))
        slot += -(-tokens // 16) * 16
    rows = draw(st.permutations(range(len(ranges))))
    return [KeyRange(row, start, n) for row, (start, n) in zip(rows, ranges, strict=True)]


@given(key_ranges())
def test_every_row_is_in_one_group_and_reads_its_own_keys(ranges):
    groups = group_decodes(ranges, SLOTS)
    found = {
        row: (group.start_slot + i * group.stride_slots, group.lengths[i])
        for group in groups
        for i, row in enumerate(group.rows)
    }
    assert found == {keys.row: (keys.start_slot, keys.tokens) for keys in ranges}
    assert sum(len(group.rows) for group in groups) == len(ranges)


@given(key_ranges())
def test_groups_stay_inside_the_pool_and_pad_little(ranges):
    for group in group_decodes(ranges, SLOTS):
        last = group.start_slot + (len(group.rows) - 1) * group.stride_slots
        assert last + group.tokens <= SLOTS
        assert len(group.rows) * group.tokens <= PADDING_MAX * sum(group.lengths)


def test_equal_sequences_side_by_side_are_one_group():
    ranges = [KeyRange(row, 96 * row, 40 + row) for row in range(8)]
    (group,) = group_decodes(ranges, SLOTS)
    assert group.rows_index(torch.device("cpu")) == slice(0, 8)


def test_the_mask_hides_what_lies_behind_each_end():
    (group,) = group_decodes([KeyRange(0, 0, 2), KeyRange(1, 16, 3)], SLOTS)
    mask = group.mask(torch.float32, torch.device("cpu"))
    assert (mask[:, 0, 0] == 0).tolist() == [[True, True, False], [True, True, True]]
    (equal,) = group_decodes([KeyRange(0, 0, 3), KeyRange(1, 16, 3)], SLOTS)
    assert equal.mask(torch.float32, torch.device("cpu")) is None
