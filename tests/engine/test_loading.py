"""A stage that cannot fit is refused in a sentence before its weights are read."""

import pytest
import torch

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.stage_size import stage_size_of
from molink.engine import loading
from molink.engine.loading import load_stage
from molink.errors import UserError
from molink.importing.plain_model import import_plain
from molink.stage_protocol.messages import StageWork
from molink_scheduler.units import gb_text
from tests.engine.device.stand_in import GB, StandInCard
from tests.engine.tiny_models import save_tiny


@pytest.fixture
def folder(tmp_path):
    save_tiny("llama", tmp_path / "m")
    return tmp_path / "m"


@pytest.fixture
def unread(monkeypatch):
    """No weights may be loaded."""

    def load(*_):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(loading, "load_model", load)


def refused(folder, work, **options):
    with pytest.raises(UserError) as error:
        load_stage(str(folder), work, self_test=False, **options)
    return str(error.value)


def test_more_than_is_free(folder, unread, monkeypatch):
    monkeypatch.setattr(loading, "free_memory_bytes", lambda: 100_000)
    sentence = refused(folder, StageWork((0, 3), "cpu", "float32", 64))
    size = stage_size_of(open_checkpoint(str(folder)), (0, 3)).held_bytes(4, 64)
    assert sentence == (
        f"{folder}, layers 0 to 2, with KV for 64 tokens needs {gb_text(size, 2)} on cpu, where "
        "0.0001 GB are free: give it fewer layers there, fewer --kv-tokens or another node; or "
        "round the model with `molink import --weights int4`."
    )


def test_more_than_is_lent(folder, unread):
    work = StageWork((1, 3), "cpu", "float32", 64)
    size = stage_size_of(open_checkpoint(str(folder)), (1, 3)).held_bytes(4, 64)
    assert "layers 1 to 2," in refused(folder, work, memory_bytes=int(0.97 * size))
    with pytest.raises(AssertionError, match="weights were loaded"):
        load_stage(str(folder), work, memory_bytes=size, self_test=False)


def test_kv_counts(folder, unread):
    work = StageWork((0, 3), "cpu", "float32", 10**12)
    assert "with KV for 1,000,000,000,000 tokens" in refused(folder, work)


def test_a_rounded_model_is_not_to_be_rounded_again(folder, tmp_path, unread):
    import_plain(folder, tmp_path / "out", "int4", 32, lambda done, total: None)
    sentence = refused(tmp_path / "out", StageWork((0, 3), "cpu", "float32", 64), memory_bytes=1)
    assert sentence.endswith("fewer --kv-tokens or another node.")


@pytest.mark.parametrize("name", ["llama", "tied_llama", "mixtral"])
@pytest.mark.parametrize("layers", [(0, 1), (1, 2), (1, 3), (0, 3)])
def test_a_stage_counts_what_it_loads(name, layers, tmp_path):
    """Of a checkpoint that holds all layers, its own alone."""
    save_tiny(name, tmp_path)
    stage = load_stage(str(tmp_path), StageWork(layers, "cpu", "float32", 64), self_test=False)
    size = stage_size_of(open_checkpoint(str(tmp_path)), layers)
    assert size.held_bytes(4, 0) == pytest.approx(stage.weights_bytes, rel=0.01)


def test_files_that_are_not_here_yet_have_no_size(folder):
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    assert stage_size_of(open_checkpoint(str(folder)), (0, 1)) is None


def test_a_card_that_is_full_while_it_loads(folder, monkeypatch):
    """Others' programs may grow between the count and the reading."""

    def read_onto(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(loading, "read_onto", read_onto)
    sentence = refused(folder, StageWork((1, 3), "cpu", "float32", 64))
    assert sentence.startswith("layers 1 to 2 have no room on cpu: give it fewer layers")


def test_a_card_s_stage_is_counted_by_what_the_card_has_free(folder, unread, monkeypatch):
    size = stage_size_of(open_checkpoint(str(folder)), (0, 3)).held_bytes(4, 64)
    card = StandInCard(total_bytes=size + GB // 2 - 1)  # Half a GB is the process's own.
    monkeypatch.setattr(loading, "card_of", lambda device: card)
    work = StageWork((0, 3), "cpu", "float32", 64)
    assert "GB are free" in refused(folder, work)
    card.total_bytes += 1
    with pytest.raises(AssertionError, match="weights were loaded"):
        load_stage(str(folder), work, self_test=False)
