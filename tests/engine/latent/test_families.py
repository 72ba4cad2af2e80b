"""Latent rows are kept where they can be, counted as they are kept, and no broken use of them
passes the self-test."""

from pathlib import Path

import pytest
import torch

from molink.checkpoint.description import ModelDescription
from molink.checkpoint.model_config import model_shape
from molink.checkpoint.model_shape import kv_bytes
from molink.engine.layers import latent_attention
from molink.engine.layers.latent_expansion import LatentExpansion
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.kv_rows import KvRows
from molink.engine.model import finding_latents
from molink.engine.self_test.self_test import check_architecture
from molink.engine.step.stage import StageExecutor
from molink.errors import UnsupportedModelError
from tests.engine.latent.latents import LATENTS, SOME, published_config, small_latent
from tests.engine.ring_driver import load_stages
from tests.sweeps import crossed, swept

DESCRIPTION = ModelDescription("m", Path(), "m", 4, 64, 128, 4096, (), "float32")


def check(name: str) -> None:
    check_architecture(published_config(name), DESCRIPTION)


@pytest.mark.parametrize("name", swept(LATENTS, *SOME))
def test_published_settings_are_served_from_latent_rows(name, monkeypatch):
    stages = []
    plain = StageExecutor.prepare

    def prepare(self, *args, **options):
        plain(self, *args, **options)
        stages.append(self)

    monkeypatch.setattr(StageExecutor, "prepare", prepare)
    check(name)
    config = published_config(name)
    assert sum(len(stage._pool.latents) for stage in stages) >= 1
    assert not any(stage._pool.layers for stage in stages), config.model_type


@pytest.mark.parametrize("dtype, kv_dtype", crossed(["float32", "bfloat16"], ["auto", "int8"]))
@pytest.mark.parametrize("name", swept(LATENTS, *SOME))
def test_plans_count_what_stages_keep(name, dtype, kv_dtype, tmp_path):
    """By the config alone, before anything is loaded."""
    whole = small_latent(name).to(getattr(torch, dtype))
    whole.save_pretrained(tmp_path)
    layers = whole.config.num_hidden_layers
    (stage,) = load_stages(tmp_path, (0, layers), dtype, kv_dtype=kv_dtype)
    counted = kv_bytes(kv_dtype, stage.dtype.itemsize, *model_shape(tmp_path).kv_numbers(0, layers))
    assert counted == stage.kv_token_bytes
    assert stage.kv_token_bytes == stage._pool.resized(32).token_bytes > 0


# -- broken --------------------------------------------------------------------------------------


def rotated_part_lost(monkeypatch) -> None:
    plain = KvPool.write_latents

    def write(self, layer, slots, rows, rank):
        kept = torch.cat([rows[:, :rank], torch.zeros_like(rows[:, rank:])], -1)
        return plain(self, layer, slots, kept, rank)

    monkeypatch.setattr(KvPool, "write_latents", write)


def rows_not_stored(monkeypatch) -> None:
    plain = KvPool.write_latents

    def write(self, layer, slots, rows, rank):
        return plain(self, layer, slots[:1], rows[:1], rank)

    monkeypatch.setattr(KvPool, "write_latents", write)


def heads_mixed_up(monkeypatch) -> None:
    plain = LatentExpansion.absorbed
    monkeypatch.setattr(LatentExpansion, "absorbed", lambda self, q: plain(self, q.flip(1)))


def values_of_another_head(monkeypatch) -> None:
    plain = LatentExpansion.values
    monkeypatch.setattr(LatentExpansion, "values", lambda self, sums: plain(self, sums.flip(1)))


def keys_made_of_zeros(monkeypatch) -> None:
    plain = LatentExpansion.expanded
    monkeypatch.setattr(
        LatentExpansion, "expanded", lambda self, rows, heads: plain(self, 0 * rows, heads)
    )


def newest_row_missed(monkeypatch) -> None:
    plain = KvPool.read

    def read(self, source, seen, which=0):
        rows = plain(self, source, seen, which).rows_SKA
        return KvRows(torch.cat([rows[:1], rows[:-1]]))

    monkeypatch.setattr(KvPool, "read", read)


def methods_confused(monkeypatch) -> None:
    """Rows of spans that are left to absorbed queries stand where others stood."""
    plain = latent_attention.LatentRows._spans_by_method

    def confused(self):
        made, few, rows = plain(self)
        return made, few, rows if rows is None else rows.flip(0)

    monkeypatch.setattr(latent_attention.LatentRows, "_spans_by_method", confused)


MUTANTS = [
    rotated_part_lost,
    rows_not_stored,
    heads_mixed_up,
    values_of_another_head,
    keys_made_of_zeros,
    newest_row_missed,
    methods_confused,
]


@pytest.mark.parametrize("name", swept(SOME, "GLM-4.7-Flash"))
@pytest.mark.parametrize("mutant", MUTANTS)
def test_broken_use_of_latent_rows_is_refused(name, mutant, monkeypatch):
    monkeypatch.setattr(finding_latents, "alike", lambda *_: None)
    mutant(monkeypatch)
    with pytest.raises(UnsupportedModelError, match="log-probabilities differ"):
        check(name)


@pytest.mark.parametrize(
    "mutant", [heads_mixed_up, values_of_another_head, keys_made_of_zeros, rows_not_stored]
)
def test_whole_keys_are_kept_where_latent_rows_would_compute_something_else(
    mutant, tmp_path, monkeypatch
):
    """The trial tells, before the self-test has to."""
    mutant(monkeypatch)
    check("GLM-4.7-Flash")
    whole = small_latent("GLM-4.7-Flash")
    whole.save_pretrained(tmp_path)
    (stage,) = load_stages(tmp_path, (0, 4))
    config = whole.config
    key_and_value = config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim
    assert stage.kv_token_bytes == 4 * 4 * config.num_attention_heads * key_and_value
