"""From a real shelf on loopback: only what is needed, once, and right."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys

import pytest

from molink.checkpoint.checkpoint import INDEX
from molink.errors import UserError, WeightsError
from molink_agent.weights import CoordinatorSource, ensure_weights
from tests.agent.weights.stored import needed_of, tensors_in
from tests.agent.weights.weights_server import (
    BLOCK,
    LAYER_BYTES,
    LAYERS,
    QUICK,
    TOKEN,
    Fault,
    safetensors_bytes,
    write_model,
)

SINGLE = "model.safetensors"


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("layers", [range(2), range(2, 4), range(4, 6), range(6)])
async def test_a_stage_gets_its_tensors_and_no_others(serve, home, layers, files, tied):
    server = await serve(files=files, tied=tied)
    found = await ensure_weights(server.source, layers, home, QUICK)
    assert tensors_in(found) == needed_of(server.model, layers, LAYERS, tied=tied)
    for name in ("config.json", "tokenizer.json"):
        assert (found / name).read_bytes() == (server.model / name).read_bytes()


async def test_the_tail_of_a_ring_that_drafts_gets_that_layer_and_the_embeddings(
    serve, home, tmp_path
):
    model = write_model(tmp_path / "drafting", files=3)
    own = [("mtp.fc.weight", 4000), ("mtp.layers.0.mlp.weight", 5000)]
    (model / "drafts.safetensors").write_bytes(safetensors_bytes(own, random.Random(1)))
    index = json.loads((model / INDEX).read_text())
    index["weight_map"] |= {name: "drafts.safetensors" for name, _ in own}
    (model / INDEX).write_text(json.dumps(index))
    server = await serve(model)
    found = await ensure_weights(server.source, range(4, 6), home, QUICK, drafts=True)
    held, stored = tensors_in(found), tensors_in(model)
    plain = needed_of(model, range(4, 6), LAYERS, tied=False)
    names = {"mtp.fc.weight", "mtp.layers.0.mlp.weight", "model.embed_tokens.weight"}
    assert held == plain | {name: stored[name] for name in names}
    for layers, drafts in ((range(4, 6), False), (range(2), True)):
        found = await ensure_weights(server.source, layers, home, QUICK, drafts=drafts)
        assert tensors_in(found) == needed_of(model, layers, LAYERS, tied=False)


async def test_only_the_blocks_of_its_layers_travel(serve, home):
    server = await serve()
    await ensure_weights(server.source, range(2, 3), home, QUICK)
    assert LAYER_BYTES <= server.bytes_asked(SINGLE) <= LAYER_BYTES + 2 * BLOCK


async def test_nothing_travels_twice(serve, home):
    server = await serve()
    first = await ensure_weights(server.source, range(3), home, QUICK)
    server.asked.clear()
    assert await ensure_weights(server.source, range(3), home, QUICK) == first
    assert server.asked == []


async def test_other_layers_cost_only_what_is_new(serve, home):
    server = await serve()
    await ensure_weights(server.source, range(1, 4), home, QUICK)
    server.asked.clear()
    found = await ensure_weights(server.source, range(2, 5), home, QUICK)
    assert server.bytes_asked() <= LAYER_BYTES + 2 * BLOCK
    assert tensors_in(found) == needed_of(server.model, range(2, 5), LAYERS, tied=False)


async def test_progress_rises_to_one(serve, home):
    server = await serve()
    told = []
    await ensure_weights(server.source, range(6), home, QUICK, told.append)
    fractions = [one.fraction for one in told]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert told[-1].bytes_per_s > 0 and told[-1].total_bytes > 0


async def test_verifying_what_is_there_is_progress_too(serve, home):
    """From an old disk it takes minutes, in which a coordinator must see that it goes on."""
    server = await serve()
    await ensure_weights(server.source, range(6), home, QUICK)
    told = []
    await ensure_weights(
        server.source, range(6), home, QUICK, lambda one: told.append(one.fraction)
    )
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0.0, 1.0)
    assert len(set(told)) > LAYERS


async def test_a_damaged_block_is_fetched_again(serve, home):
    server = await serve()
    server.faults.extend([Fault(), Fault(), Fault(altered=BLOCK + 5)])
    found = await ensure_weights(server.source, range(2, 4), home, QUICK)
    assert tensors_in(found) == needed_of(server.model, range(2, 4), LAYERS, tied=False)
    blocks = server.blocks_asked(SINGLE)
    assert sorted(blocks) == sorted([*set(blocks), blocks[1]])


async def test_a_block_that_stays_damaged_ends_it_in_one_sentence(serve, home):
    server = await serve()
    server.faults.extend([Fault(), Fault(), *[Fault(altered=0)] * 3])
    with pytest.raises(WeightsError, match=r"came damaged 3 times from .*; nothing of it was kept"):
        await ensure_weights(server.source, range(2, 4), home, QUICK)
    assert not list(home.rglob("layers-*"))
    assert len(server.asked) == 5


@pytest.mark.parametrize("files", [1, 3])
async def test_a_byte_that_changed_on_the_disk_is_noticed_and_fetched_again(serve, home, files):
    server = await serve(files=files)
    found = await ensure_weights(server.source, range(2, 4), home, QUICK)
    right = tensors_in(found)
    part = next(home.rglob("parts/layer-00002.*.safetensors"))
    before = part.stat()
    data = bytearray(part.read_bytes())
    data[-7] ^= 1
    part.write_bytes(data)
    os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns))
    server.asked.clear()
    found = await ensure_weights(server.source, range(2, 4), home, QUICK)
    assert tensors_in(found) == right
    assert 0 < server.bytes_asked() <= 2 * BLOCK


@pytest.mark.parametrize("harm", ["shorter", "longer", "gone", "no journal", "torn journal"])
async def test_whatever_happened_to_a_part_it_comes_right_again(serve, home, harm):
    server = await serve()
    await ensure_weights(server.source, range(2, 4), home, QUICK)
    (part,) = home.rglob("parts/layer-00002.*.safetensors")
    journal = part.with_name(f"{part.name}.journal")
    match harm:
        case "shorter":
            part.write_bytes(part.read_bytes()[:-1])
        case "longer":
            part.write_bytes(part.read_bytes() + b"x")
        case "gone":
            part.unlink()
        case "no journal":
            journal.unlink()
        case "torn journal":
            journal.write_bytes(journal.read_bytes()[:-30])
    found = await ensure_weights(server.source, range(2, 4), home, QUICK)
    assert tensors_in(found) == needed_of(server.model, range(2, 4), LAYERS, tied=False)


async def test_a_reset_connection_goes_on_where_it_was(serve, home):
    server = await serve()
    server.faults.extend([Fault(), Fault(), Fault(cut=5 * BLOCK + 100), Fault(status=502)])
    found = await ensure_weights(server.source, range(6), home, QUICK)
    assert tensors_in(found) == needed_of(server.model, range(6), LAYERS, tied=False)
    starts = [start for name, start, _ in server.asked if name == SINGLE]
    assert len(starts) == 3
    assert starts[0] <= starts[1] == starts[2] <= 5 * BLOCK


async def test_a_server_that_goes_away_and_comes_back(serve, home):
    server = await serve()
    server.faults.extend([Fault(), Fault(), Fault(cut=12 * BLOCK, hold=True)])
    held = asyncio.Event()
    patient = asyncio.create_task(
        ensure_weights(
            server.source, range(6), home, QUICK, lambda one: one.fraction > 0.2 and held.set()
        )
    )
    await held.wait()
    await server.stop()
    await server.start()
    assert tensors_in(await patient) == needed_of(server.model, range(6), LAYERS, tied=False)


async def test_a_server_that_stays_away_ends_it_in_one_sentence(serve, home):
    server = await serve()
    await server.stop()
    with pytest.raises(WeightsError, match=r"5 tries failed in a row .*what has come is kept"):
        await ensure_weights(server.source, range(6), home, QUICK)


async def test_a_wrong_token_is_not_tried_again(serve, home):
    server = await serve()
    with pytest.raises(WeightsError, match="refuses weights: it answered 403"):
        await ensure_weights(CoordinatorSource(server.url, "wrong"), range(6), home, QUICK)
    assert server.asked == []


async def test_layers_that_the_model_does_not_have(serve, home):
    server = await serve()
    with pytest.raises(UserError, match=f"some of {LAYERS} layers"):
        await ensure_weights(server.source, range(4, 8), home, QUICK)


async def test_something_else_that_listens_there(serve, home):
    server = await serve()
    elsewhere = CoordinatorSource(server.url + "/files", TOKEN)
    with pytest.raises(WeightsError, match="refuses weights"):
        await ensure_weights(elsewhere, range(6), home, QUICK)


async def test_two_at_once_in_a_directory(serve, home):
    server = await serve()
    server.faults.extend([Fault(), Fault(), Fault(cut=12 * BLOCK, hold=True)])
    going = asyncio.Event()
    first = asyncio.create_task(
        ensure_weights(
            server.source, range(6), home, QUICK, lambda one: one.fraction > 0.2 and going.set()
        )
    )
    await going.wait()
    with pytest.raises(WeightsError, match=rf"another download \(process {os.getpid()}\)"):
        await ensure_weights(server.source, range(2), home, QUICK)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await ensure_weights(server.source, range(2), home, QUICK)


async def test_a_new_version_of_a_model_is_another_model(serve, home, tmp_path):
    old = await serve()
    await ensure_weights(old.source, range(2), home, QUICK)
    new = await serve(write_model(tmp_path / "new", seed=5))
    found = await ensure_weights(new.source, range(2), home, QUICK)
    assert tensors_in(found) == needed_of(new.model, range(2), LAYERS, tied=False)


async def test_a_changed_config_is_no_reason_to_fetch_weights_again(serve, home):
    server = await serve()
    await ensure_weights(server.source, range(2), home, QUICK)
    await server.stop()
    config = server.model / "config.json"
    config.write_text(config.read_text().replace("64", "32"))
    await server.start()
    server.asked.clear()
    found = await ensure_weights(server.source, range(2), home, QUICK)
    assert {name for name, *_ in server.asked} == {"config.json"}
    assert (found / "config.json").read_text() == config.read_text()


@pytest.mark.parametrize("at", [0.5, 0.8])
async def test_killed_in_the_middle_it_fetches_only_the_rest(serve, home, at):
    server = await serve()
    size = (server.model / SINGLE).stat().st_size
    server.faults.extend([Fault(), Fault(), Fault(cut=int(size * (at + 0.1)), hold=True)])
    await _run_until_killed(server.url, home, at)
    assert not list(home.rglob("layers-*"))
    good = _blocks_that_nobody_misses(home)
    assert len(good) > at * size / BLOCK - 3
    server.asked.clear()
    found = await ensure_weights(server.source, range(LAYERS), home, QUICK)
    assert not good & set(server.blocks_asked(SINGLE))
    assert server.bytes_asked() <= size - len(good) * BLOCK + BLOCK
    assert tensors_in(found) == needed_of(server.model, range(LAYERS), LAYERS, tied=False)


async def _run_until_killed(url: str, home, at: float) -> None:
    """A process of its own, killed as soon as it tells of this progress."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "molink_agent.weights", url, "0", str(LAYERS), str(home)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MOLINK_WEIGHTS_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
    )
    async for line in process.stdout:
        if json.loads(line).get("fraction", 1) >= at:
            process.send_signal(signal.SIGKILL)
            break
    assert await process.wait() == -signal.SIGKILL


def _blocks_that_nobody_misses(home) -> set[int]:
    """By what lies on the disk: the blocks that the journal of some part names, but the last, which
    may have been on its way into another part."""
    named = {
        int(line.split()[0])
        for journal in home.rglob("*.safetensors.journal")
        for line in journal.read_text().splitlines()[1:]
    }
    return named - {max(named)}
