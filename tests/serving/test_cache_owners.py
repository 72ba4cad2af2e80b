"""What heads are told of who asks: a group, whose share of the cache, and nothing of the key."""

import pytest

from molink.serving.service import GenerationRequest, cache_salt
from molink_scheduler.kv.owners import split_salt
from molink_scheduler.request import CACHE_SALT_CHARS_MAX, SamplingParams


@pytest.mark.parametrize("chosen", [None, "ours", "x" * 256])
@pytest.mark.parametrize("is_shared", [True, False])
def test_a_salt_with_its_owner_is_what_a_head_takes(chosen, is_shared):
    told = {}
    for key in (None, "anna", "ben"):
        group = cache_salt(key, chosen, is_shared=is_shared)
        request = GenerationRequest((1,), SamplingParams(max_tokens=1), key, cache_salt=group)
        salt = request.owned_salt
        assert len(salt) <= CACHE_SALT_CHARS_MAX and not {"anna", "ben"} & {salt}
        assert split_salt(salt)[0] == group, "whom it shares with stays"
        told[key] = split_salt(salt)[1]
    assert told[None] == "" and len(set(told.values())) == 3
