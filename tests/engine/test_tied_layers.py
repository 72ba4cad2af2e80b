"""Models whose layers share KV and read something of the token itself: exact in stages, and cut
only where they may be."""

import copy
import random

import pytest
import torch
from transformers import AutoConfig

from molink.checkpoint.layers_together import layers_together
from molink.checkpoint.safetensors_header import read_header
from molink.checkpoint.shard_plan import TOKEN_TABLE
from molink.engine.kernels.cpu.packed_linear import PackedLinear
from molink.engine.layers.attention_function import ATTENTION_NAME
from molink.engine.layers.experts import EXPERTS_NAME
from molink.engine.probes.step_probe import _random_stage, probe_steps
from molink.engine.self_test import miniature, self_test
from molink.errors import CheckpointError, StageError, UnsupportedModelError, UserError
from molink_scheduler.batch import Admission, Batch, BatchClass, Span
from tests.engine.cpu_stages import cpu_stage
from tests.engine.recurrent.mixed_requests import SAMPLING, MixedRequests
from tests.engine.ring_driver import load_stages
from tests.engine.self_test.test_self_test import DESCRIPTION
from tests.engine.tiny_models import generate, tiny_model
from tests.sweeps import swept
from tools.models_page.published import PUBLISHED

PROMPT_TOKENS = (1, 5, 33, 70, 131, 18, 2, 47)
NEW_TOKENS = 12
E_SERIES = ("Gemma 4 E2B", "Gemma 4 E4B")


def config_of(name):
    published = next(one for one in PUBLISHED if one.name == name)
    config = AutoConfig.for_model(published.model_type, **published.settings)
    config._attn_implementation, config._experts_implementation = ATTENTION_NAME, EXPERTS_NAME
    return config


def small_model(name, seed=0):
    """The whole model in miniature, in fp32, as the library computes it."""
    config = copy.deepcopy(miniature.shrink_config(config_of(name)))
    config._attn_implementation = config._experts_implementation = "eager"
    return tiny_model(config, seed)


def cuts_of(whole):
    """Three stages, the last with all layers that stay together and one more where there is one."""
    count = whole.config.num_hidden_layers
    ((first, end),) = layers_together(whole.config.to_dict(), count)
    assert end == count
    return (0, 1, first, count) if first else (0, count)


@pytest.mark.parametrize("name", swept([*E_SERIES, "Gemma 3n E4B"], E_SERIES[0], "Gemma 3n E4B"))
def test_eight_mixed_requests_equal_generate(name, tmp_path, monkeypatch):
    monkeypatch.setattr(miniature, "LAYERS_MIN", 8)
    whole = small_model(name)
    whole.save_pretrained(tmp_path, max_shard_size="120KB")
    stages = load_stages(tmp_path, cuts_of(whole))
    generator = torch.Generator().manual_seed(3)
    prompts = [
        torch.randint(1, whole.config.vocab_size, (tokens,), generator=generator).tolist()
        for tokens in PROMPT_TOKENS
    ]
    mixed = MixedRequests(stages, prompts, NEW_TOKENS, random.Random(5))
    answers = mixed.run()
    assert min(mixed.mixed, mixed.restarts, mixed.inside) >= 2
    assert answers == [generate(whole, prompt, NEW_TOKENS) for prompt in prompts]


def test_a_stage_holds_its_own_layers_columns_and_the_token_embeddings(tmp_path):
    whole = small_model("Gemma 4 E2B")
    whole.save_pretrained(tmp_path)
    config = whole.config
    stages = load_stages(tmp_path, cuts_of(whole))
    for stage in stages:
        decoder, own = stage.model.get_decoder(), len(stage.layers)
        width = own * config.hidden_size_per_layer_input
        assert decoder.embed_tokens_per_layer.inner.weight.shape == (config.vocab_size, width)
        assert decoder.embed_tokens.weight.shape == (config.vocab_size, config.hidden_size)
        made = decoder.per_layer_model_projection(torch.ones(1, 1, config.hidden_size))
        others = [n for n in range(config.num_hidden_layers) if n not in stage.layers]
        parts = made.view(config.num_hidden_layers, -1)
        assert not parts[others].any() and parts[list(stage.layers)].any()


def test_stages_send_token_ids_on_and_refuse_rows_without(tmp_path):
    whole = small_model("Gemma 4 E2B")
    whole.save_pretrained(tmp_path)
    stages = load_stages(tmp_path, cuts_of(whole))
    admission = Admission(0, 3, 8, SAMPLING)
    batch = Batch(0, BatchClass.PREFILL, -1, (Span(0, 0, 3, True),), (admission,))
    sent = stages[0].step(batch, [5, 6, 7])
    assert sent.token_ids == (5, 6, 7)
    with pytest.raises(StageError, match="3 token ids are needed"):
        stages[1].step(batch, None, sent.hidden_TD)
    with pytest.raises(StageError, match="not in the vocabulary"):
        stages[1].step(batch, [5, 6, whole.config.vocab_size], sent.hidden_TD)
    assert stages[1].step(batch, sent.token_ids, sent.hidden_TD).token_ids == (5, 6, 7)


@pytest.mark.parametrize("name", E_SERIES)
def test_published_settings_are_served_in_three_stages(name, monkeypatch):
    parts = noted_parts(monkeypatch)
    self_test.check_architecture(config_of(name), DESCRIPTION)
    assert [len(part.layers) for part in parts] == [1, 1, 4]


def test_streams_that_do_not_travel_are_served_by_one_stage(monkeypatch):
    parts = noted_parts(monkeypatch)
    self_test.check_architecture(config_of("Gemma 3n E4B"), DESCRIPTION)
    assert [part.is_head and part.is_tail for part in parts] == [True]


def noted_parts(monkeypatch):
    parts, plain = [], self_test._stage

    def noted(small, description, part, *others):
        parts.append(part)
        return plain(small, description, part, *others)

    monkeypatch.setattr(self_test, "_stage", noted)
    return parts


def test_the_self_test_refuses_ids_of_other_rows(monkeypatch):
    plain = self_test.StageExecutor.step

    def shifted(self, batch, token_ids=None, hidden_TD=None, interrupt=None):
        if hidden_TD is not None and token_ids is not None:
            token_ids = [*token_ids[1:], token_ids[0]]
        return plain(self, batch, token_ids, hidden_TD, interrupt)

    monkeypatch.setattr(self_test.StageExecutor, "step", shifted)
    with pytest.raises(UnsupportedModelError, match="log-probabilities differ"):
        self_test.check_architecture(config_of("Gemma 4 E2B"), DESCRIPTION)


def test_the_self_test_refuses_a_cut_among_layers_that_share(monkeypatch):
    monkeypatch.setattr(self_test, "layers_together", lambda config, layers: ())
    with pytest.raises(UnsupportedModelError, match="cannot be served"):
        self_test.check_architecture(config_of("Gemma 4 E2B"), DESCRIPTION)


def test_the_self_test_refuses_columns_of_other_layers(monkeypatch):
    plain = self_test.keep_own_columns

    def beside(model, layers, layers_total):
        shift = 1 if layers.start == 0 else -1
        moved = range(layers.start + shift, layers.stop + shift)
        plain(model, moved, layers_total)

    monkeypatch.setattr(self_test, "keep_own_columns", beside)
    with pytest.raises(UnsupportedModelError, match="log-probabilities differ"):
        self_test.check_architecture(config_of("Gemma 4 E4B"), DESCRIPTION)


def test_a_cut_among_layers_that_share_is_refused_before_anything_is_read(tmp_path):
    whole = small_model("Gemma 4 E2B")
    whole.save_pretrained(tmp_path)
    first = cuts_of(whole)[-2]
    with pytest.raises(UserError, match=f"cut it at layer {first} or before") as caught:
        cpu_stage(tmp_path, range(first + 1, whole.config.num_hidden_layers))
    assert "share keys and values" in str(caught.value) and "\n" not in str(caught.value)


def test_a_model_of_several_streams_is_refused_in_parts(tmp_path):
    whole = small_model("Gemma 3n E4B")
    whole.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="to one stage, as --nodes 1 does"):
        cpu_stage(tmp_path, range(1))


def test_a_damaged_table_is_refused(tmp_path):
    whole = small_model("Gemma 4 E2B")
    whole.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    (table,) = (one for one in read_header(file).tensors if TOKEN_TABLE in one.name)
    content = bytearray(file.read_bytes())
    at = content.find(b'"shape":[', content.find(table.name.encode()))
    shape = f'"shape":[{table.shape[0]},{table.shape[1]}]'.encode()
    other = f'"shape":[{table.shape[1]},{table.shape[0]}]'.encode()
    assert content[at : at + len(shape)] == shape and len(other) == len(shape)
    content[at : at + len(shape)] = other
    file.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="is that of another model"):
        load_stages(tmp_path, cuts_of(whole))


@pytest.mark.parametrize("name", ["Gemma 4 E2B", "Gemma 3n E4B"])
def test_a_layer_is_timed_from_the_config_alone(name, tmp_path):
    whole = small_model(name)
    whole.config.save_pretrained(tmp_path)
    stage = _random_stage(str(tmp_path), "cpu", "float32", 2)
    assert len(stage.layers) == 2
    layers = [whole.model.layers[layer] for layer in stage.layers]
    held = [stage.model.model.layers[layer] for layer in stage.layers]
    assert list(map(weights_of, held)) == list(map(weights_of, layers))
    assert probe_steps(str(tmp_path), "cpu", "float32", 2)["prefill_row_s"] > 0


def weights_of(layer):
    packed = [module for module in layer.modules() if isinstance(module, PackedLinear)]
    packed_numbers = sum(module.weights_bytes // 4 for module in packed)
    return packed_numbers + sum(parameter.numel() for parameter in layer.parameters())
