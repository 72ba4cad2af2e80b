from hypothesis import given, settings
from hypothesis import strategies as st

from molink_scheduler.routing.prefix_mirror import MIRROR_BLOCKS_MAX, PrefixMirror
from molink_scheduler.token_ids import token_bytes


def packed(*tokens: int) -> bytes:
    """Blocks of sixteen tokens that are alike."""
    return token_bytes([token for token in tokens for _ in range(16)])


def test_a_prompt_counts_as_cached_from_when_it_is_sent():
    mirror = PrefixMirror.of_ring(160)
    mirror.computes("", packed(1, 2, 3))
    assert mirror.cached_tokens("", packed(1, 2, 9)) == 32
    assert mirror.cached_tokens("another", packed(1, 2, 9)) == 0


def test_the_last_token_of_a_prompt_is_never_cached():
    mirror = PrefixMirror.of_ring(160)
    mirror.computes("", packed(1, 2))
    assert mirror.cached_tokens("", packed(1, 2)) == 16
    assert mirror.cached_tokens("", packed(1, 2) + token_bytes([3])) == 32
    assert mirror.cached_tokens("", b"") == 0


def test_what_was_used_least_recently_is_dropped_first():
    mirror = PrefixMirror.of_ring(3 * 16)
    mirror.computes("", packed(1, 1))
    mirror.computes("", packed(2))
    mirror.computes("", packed(1, 1))  # Used again.
    mirror.computes("", packed(3))
    assert mirror.cached_tokens("", packed(2, 0)) == 0
    assert mirror.cached_tokens("", packed(1, 1, 0)) == 32


def test_a_ring_that_has_less_than_thought_is_thought_to_have_less():
    mirror = PrefixMirror.of_ring(1600)
    for one in range(5):
        mirror.computes("", packed(one, one))
    mirror.missed(64)
    assert [mirror.cached_tokens("", packed(one, one, 9)) for one in range(5)] == [0, 0, 32, 32, 32]


def test_a_ring_that_begins_anew_holds_nothing():
    mirror = PrefixMirror.of_ring(1600)
    mirror.computes("", packed(1, 2))
    mirror.clear()
    assert mirror.cached_tokens("", packed(1, 2, 3)) == 0


def test_however_large_a_ring_is_its_copy_is_bounded():
    assert PrefixMirror.of_ring(10**12).blocks_max == MIRROR_BLOCKS_MAX


CHAINS = st.lists(st.tuples(st.sampled_from(["", "a"]), st.lists(st.integers(0, 2), max_size=6)))


@settings(max_examples=60)
@given(CHAINS, st.integers(0, 8))
def test_it_never_holds_more_than_the_ring(chains, blocks):
    mirror = PrefixMirror.of_ring(blocks * 16)
    for number, (salt, chain) in enumerate(chains):
        mirror.computes(salt, packed(*chain))
        assert mirror.tree.blocks <= blocks
        if chain and len(chain) <= blocks:
            assert mirror.cached_tokens(salt, packed(*chain, 7)) == 16 * len(chain)
        if number % 5 == 4:
            mirror.missed(16)
