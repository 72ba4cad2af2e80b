"""Requests that were folded answer as before, whatever others write in the blocks that they gave
back."""

import pytest
import torch

from molink.engine.memory.cached_blocks import BlocksOfParts
from molink_scheduler.batch import Release
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.changes import FoldBlocks, KeepBlocks, KeptBlocks
from tests.engine.cut_reference import Cut, generate_cut
from tests.engine.ring_driver import load_stages
from tests.engine.step.test_prompt_cuts import (
    CUT_LAYERS,
    NEW_TOKENS,
    PROMPT_TOKENS,
    Follower,
    cached_rows,
    prompt_of,
    sampling,
)
from tests.engine.tiny_models import LAYERS, save_tiny

WHOLE_BLOCKS = 4
"""Of 150 tokens 75 are kept, and moved by 75."""


def folded_stage(name, directory, **options):
    """A stage of all layers, and what it answers to a prompt that is cut to a half."""
    model, prompt = save_tiny(name, directory), prompt_of(0)
    (stage,) = load_stages(directory, (0, LAYERS), **options)
    return (
        stage,
        prompt,
        [*prompt, *generate_cut(model, prompt, NEW_TOKENS, Cut(PROMPT_TOKENS, 75))],
    )


def fold(stage, request, blocks=WHOLE_BLOCKS):
    into = -(-blocks // stage.kv_memory.folds)
    BlocksOfParts([stage]).blocks_out(FoldBlocks(request, blocks, into))


def write_all_free(stage):
    """Another request has all blocks that are free, and writes them."""
    stage.kv.grow(99, stage.kv.blocks_free * BLOCK_TOKENS)
    table = list(stage.kv.table(99))
    for rows in stage.kv_memory.block_rows():
        rows[table] = 77
    return len(table)


def goes_on(request, wanted):
    while len(request.known) < len(wanted):
        request.decode()
    return request.known


@pytest.mark.parametrize("name", ["llama", "mixtral", "gpt2"])
def test_a_folded_request_answers_the_same_over_less(name, tmp_path):
    stage, prompt, wanted = folded_stage(name, tmp_path)
    assert stage.kv_memory.folds == LAYERS // 3 == 2
    request = Follower(stage, prompt, sampling(0.5))
    request.prefill(70)
    request.decode()
    free = stage.kv.blocks_free
    fold(stage, 1)
    assert stage.kv.blocks_free == free + 2
    assert write_all_free(stage) == free + 2
    stage.release(Release(99))
    for _ in range(3):
        request.decode()
    write_all_free(stage)
    assert goes_on(request, wanted[: len(request.known) + 1]) == wanted[: len(request.known)]
    stage.release(Release(99))
    assert goes_on(request, wanted) == wanted
    stage.release(Release(1))
    assert stage.kv.blocks_free == stage.kv.blocks_total


@pytest.mark.parametrize("begun", [0, 1, 4])
def test_what_is_cached_of_a_folded_request_stays_whole(begun, tmp_path):
    """Blocks of the cache are nobody's to write in; others take what was in them."""
    stage, prompt, wanted = folded_stage("llama", tmp_path)
    first = Follower(stage, prompt, sampling(0.5))
    first.prefill()
    if begun:
        BlocksOfParts([stage]).blocks_out(KeepBlocks((KeptBlocks(1, 0, 7, begun),)))
    before = [rows.clone() for rows in cached_rows(stage, begun)]
    fold(stage, 1)
    write_all_free(stage)
    stage.release(Release(99))
    assert goes_on(first, wanted) == wanted
    assert all(map(torch.equal, before, cached_rows(stage, begun)))
    stage.release(Release(1))
    assert stage.kv.blocks_free == stage.kv.blocks_total - begun


def test_folded_requests_are_beside_others_in_one_batch(tmp_path):
    stage, prompt, wanted = folded_stage("llama", tmp_path, kv_dtype="int8")
    alone, others = Follower(stage, prompt, sampling(0.5)), list[Follower]()
    alone.prefill()
    goes_on(alone, wanted)
    stage.release(Release(1))
    for number in (2, 3):
        others.append(Follower(stage, prompt, sampling(0.5), number))
        others[-1].prefill()
        if number == 2:
            fold(stage, number)
    for one in others:
        assert goes_on(one, wanted) == alone.known, "int8 codes and scales are folded together"


def test_layers_that_are_all_cut_give_everything_back(tmp_path):
    save_tiny("llama", tmp_path)
    stages = load_stages(tmp_path, (0, 3, LAYERS))
    assert [stage.kv_memory.folds for stage in stages] == [1, 512]
    (whole,) = load_stages(tmp_path, (0, 2))
    assert whole.kv_memory.folds == 1 and not whole.kv_memory.long


@pytest.mark.parametrize("name", CUT_LAYERS)
def test_a_stage_says_how_much_lies_in_one_block(name, tmp_path):
    """As many as there are layers for each that keeps all; where those are more than half, one."""
    save_tiny(name, tmp_path)
    (stage,) = load_stages(tmp_path, (0, LAYERS))
    pool = stage.kv_memory
    whole = pool.layers.keys() - set(CUT_LAYERS[name])
    assert pool.folds == (max(1, len(pool.layers) // len(whole)) if whole else 512)
    assert pool.long.keys() == (whole if whole and pool.folds > 1 else set())
