"""What layers with a window hold: all that a row to come can see, and hardly more."""

import random

import pytest

from molink_scheduler.batch import DRAFTS_MAX
from molink_scheduler.kv.blocks import BLOCK_TOKENS, OutOfBlocks, blocks_for
from molink_scheduler.kv.layer_class import (
    REWOUND_TOKENS_MAX,
    STEP_ROWS_MAX,
    LayerClass,
    WindowBlocks,
    pays,
    room_blocks,
    room_tokens,
)


def blocks_of(window: int, requests: int = 2, snapshots: int = 0) -> WindowBlocks:
    return WindowBlocks(LayerClass(frozenset({0}), window), requests, snapshots)


def step(blocks: WindowBlocks, request_id: int, start: int, end: int) -> None:
    blocks.grow(request_id, start, end)
    blocks.settle(request_id, end)


class Written:
    """Memory of the blocks: who has written which token last."""

    def __init__(self, blocks: WindowBlocks) -> None:
        self.blocks, self.tokens = blocks, dict[int, tuple[int, int]]()

    def write(self, story: int, request_id: int, start: int, end: int) -> None:
        """Tokens of a text that several requests may share."""
        table = self.blocks.table(request_id)
        for token in range(start, end):
            block, offset = divmod(token, BLOCK_TOKENS)
            self.tokens[table[block] * BLOCK_TOKENS + offset] = story, token

    def check(self, story: int, request_id: int, start: int, end: int) -> None:
        """Every row finds what it sees."""
        table, window = self.blocks.table(request_id), self.blocks.layers.window
        for token in range(max(0, start - window + 1), end):
            block, offset = divmod(token, BLOCK_TOKENS)
            assert self.tokens[table[block] * BLOCK_TOKENS + offset] == (story, token)


@pytest.mark.parametrize("window", [1, 15, 16, 17, 40, 128])
def test_a_step_of_drafts_fits_into_its_request_s_own_room(window):
    """However many are right, and beside others that fill theirs."""
    rng, requests = random.Random(window), 80
    blocks = blocks_of(window, requests)
    starts = dict.fromkeys(range(requests), 0)
    for number in range(40):
        chosen = rng.sample(range(requests), 30)
        ends = {one: starts[one] + rng.randint(1, 1 + REWOUND_TOKENS_MAX) for one in chosen}
        for one, end in ends.items():
            blocks.grow(one, starts[one], end)
        for one, end in ends.items():
            blocks.settle(one, end - REWOUND_TOKENS_MAX)
            starts[one] = rng.randint(starts[one] + 1, end) if number % 4 else end


@pytest.mark.parametrize("seed", range(30))
def test_every_row_finds_what_it_sees_and_room_suffices(seed):
    """Random requests, steps of all widths, snapshots that others begin with, rows taken back."""
    rng = random.Random(seed)
    window = rng.choice([1, 2, 15, 16, 17, 40, 128])
    requests, snapshots = rng.randrange(1, 6), rng.randrange(3)
    blocks = blocks_of(window, requests, snapshots)
    written, kept = Written(blocks), dict[int, tuple[int, int]]()
    live = dict[int, list[int]]()  # Request: its story, and its next token.
    for number in range(300):
        if len(live) < requests and rng.random() < 0.3:
            story, begun = number, 0
            if kept and rng.random() < 0.7:
                snapshot = rng.choice(list(kept))
                story, begun = kept[snapshot]
                blocks.begin(number, snapshot)
            live[number] = [story, begun]
        rows_left = STEP_ROWS_MAX
        for request_id in rng.sample(list(live), rng.randrange(len(live) + 1)):
            story, start = live[request_id]
            rows = min(rows_left, rng.choice([1, 1, 2, 3, 16, 33, 100, 512]))
            if rows == 0:
                break
            rows_left -= rows
            end = start + rows
            blocks.grow(request_id, start, end)
            written.write(story, request_id, start, end)
            live[request_id].append(end)
        for request_id, (story, start, *ends) in list(live.items()):
            if not ends:
                continue
            written.check(story, request_id, start, ends[0])
            back = rng.choice([0, 0, rng.randrange(min(REWOUND_TOKENS_MAX, ends[0] - start))])
            blocks.settle(request_id, ends[0] - back)
            live[request_id] = [story, ends[0] - back]
            if snapshots and not back and ends[0] % BLOCK_TOKENS == 0:
                kept[snapshot := rng.randrange(snapshots)] = story, ends[0]
                blocks.keep(request_id, ends[0], snapshot)
            elif rng.random() < 0.1:
                blocks.release(request_id)
                del live[request_id]
    for request_id in live:
        blocks.release(request_id)
    held = {block for one in blocks._kept.values() for block in one.blocks}
    assert blocks.blocks_free == blocks.blocks_total - len(held)


@pytest.mark.parametrize("seed", range(20))
def test_drafts_may_all_be_wrong_and_take_no_more_room(seed):
    """What is known stays seen, whatever was written behind it, and after a loss what of it the
    drafts have left room for."""
    rng = random.Random(seed)
    window = rng.choice([1, 2, 15, 16, 17, 40, 128])
    blocks, start = blocks_of(window, 1), rng.randrange(1, 100)
    written, earliest = Written(blocks), 0
    blocks.grow(1, 0, start)
    written.write(0, 1, 0, start)
    blocks.settle(1, start - REWOUND_TOKENS_MAX)
    for _ in range(200):
        drafts = rng.choice([0, 3, DRAFTS_MAX, rng.randrange(DRAFTS_MAX + 1)])
        right, known_end = rng.choice([0, drafts, rng.randrange(drafts + 1)]), start + 1
        blocks.grow(1, start, known_end + drafts)
        written.write(0, 1, start, known_end + right)
        written.write(1, 1, known_end + right, known_end + drafts)
        written.check(0, 1, start, known_end + right)
        assert len(blocks.blocks_of(1)) <= room_blocks(window)
        blocks.settle(1, known_end - REWOUND_TOKENS_MAX)
        earliest = max(earliest, known_end + max(0, drafts - 2) - REWOUND_TOKENS_MAX)
        start = known_end + right if rng.random() < 0.8 else rng.randrange(earliest, known_end)
        assert blocks.can_go_on(1, start)


def test_a_block_leaves_only_behind_what_may_be_computed_again():
    """40 rows are computed, of which the last 9 may be taken back: what row 31 sees stays."""
    blocks = blocks_of(16)
    blocks.grow(1, 0, 40)
    blocks.settle(1, 31)
    assert blocks.can_go_on(1, 31)
    assert len(blocks.blocks_of(1)) == 2
    blocks.grow(1, 31, 48)
    blocks.settle(1, 48)
    assert not blocks.can_go_on(1, 31)
    with pytest.raises(OutOfBlocks, match="go back to token 31"):
        blocks.grow(1, 31, 32)


def test_a_request_holds_its_window_however_long_it_gets():
    blocks = blocks_of(128)
    for start in range(0, 8192, 128):
        step(blocks, 1, start, start + 128)
    assert len(blocks.blocks_of(1)) == 8
    for start in range(8192, 8300):
        step(blocks, 1, start, start + 1)
        assert len(blocks.blocks_of(1)) <= room_blocks(128)
    table = blocks.table(1)
    assert len(table) == blocks_for(8300)
    assert set(table) == blocks.blocks_of(1), "no foreign block is named, although none is seen"


def test_more_than_there_is_room_for_is_refused_and_nothing_changes():
    blocks = blocks_of(16, requests=1)
    free = blocks.blocks_free
    with pytest.raises(OutOfBlocks, match="blocks of windows"):
        blocks.grow(1, 0, (free + 1) * BLOCK_TOKENS)
    assert blocks.blocks_free == free
    assert not blocks.blocks_of(1)


def test_a_snapshot_stays_while_its_request_goes_on_and_ends():
    blocks = blocks_of(32, requests=2, snapshots=1)
    step(blocks, 1, 0, 64)
    blocks.keep(1, 64, 0)
    kept = blocks.blocks_of(1)
    step(blocks, 1, 64, 200)
    blocks.release(1)
    assert not blocks.free_among(kept)
    blocks.begin(2, 0)
    assert blocks.blocks_of(2) == kept
    blocks.grow(2, 64, 65)
    assert blocks.blocks_of(2) > kept, "what is kept is full, new rows go elsewhere"


@pytest.mark.parametrize(
    ("layers", "near", "window", "share"),
    [(48, 40, 1024, 0.27), (62, 52, 1024, 0.27), (24, 12, 128, 0.51)],
    ids=["Gemma 3 12B", "Gemma 3 27B", "gpt-oss 20B"],
)
def test_kv_of_8192_tokens_is_a_share_of_what_it_was(layers, near, window, share):
    assert pays(window, 131_072)
    kept = (layers - near) * 8192 + near * room_tokens(window)
    assert round(kept / (layers * 8192), 2) == share


@pytest.mark.parametrize(
    ("window", "length", "wanted"),
    [(1024, 131_072, True), (4096, 32_768, False), (2047, 131_072, False), (512, 1024, False)],
)
def test_a_window_pays_where_its_room_is_short_of_what_requests_hold(window, length, wanted):
    assert pays(window, length) is wanted
    layers = LayerClass.of({0: None, 1: window}, length)
    assert layers.layers == ({1} if wanted else set())
