"""What a config says of its model's length and end, as their makers write it."""

import json
import shutil

import pytest

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.description import describe
from molink.checkpoint.end_tokens import end_token_ids
from molink.errors import CheckpointError, UserError
from molink.models import DEMO_MODEL_DIR
from molink.serving.served_model import load_tokenizer, read_served_model

STATED = 2048
ORIGINAL = "original_max_position_embeddings"
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, ORIGINAL: STATED}
OLD_YARN = {"type": "yarn", "factor": 4.0, ORIGINAL: STATED}


@pytest.fixture
def demo(tmp_path):
    return shutil.copytree(DEMO_MODEL_DIR, tmp_path / "demo")


def change(path, **values) -> None:
    known = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: one for key, one in known.items() if one is not None}))


@pytest.mark.parametrize(
    "written",
    [
        {"rope_parameters": YARN},
        {"rope_parameters": None, "rope_theta": 10000.0, "rope_scaling": OLD_YARN},
        {"rope_parameters": None, "rope_theta": 10000.0, "rope_scaling": YARN},
        {"rope_parameters": YARN | {"rope_type": "linear"}},
        {
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default"},
            }
        },
    ],
)
def test_a_stretched_rope_makes_the_model_longer_for_who_asks(demo, written, caplog):
    change(demo / "config.json", **written)
    assert describe(open_checkpoint(str(demo))).model_len_max == 4 * STATED
    usual = read_served_model(str(demo), None)
    assert usual.card.model_len_max == STATED
    assert f"stretched to {4 * STATED}: {STATED} are served" in caplog.text
    assert read_served_model(str(demo), 4 * STATED).card.model_len_max == 4 * STATED
    with pytest.raises(UserError, match=f"over the model's own {4 * STATED}"):
        read_served_model(str(demo), 4 * STATED + 1)


@pytest.mark.parametrize(
    "rope",
    [
        YARN | {"factor": 1.0},
        YARN | {ORIGINAL: 512},  # The length that is stated is the stretched one.
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
        {"rope_type": "default", "rope_theta": 10000.0},
        YARN | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ],
)
def test_a_length_that_is_stated_as_it_is(demo, rope, caplog):
    change(demo / "config.json", rope_parameters=rope)
    assert read_served_model(str(demo), None).card.model_len_max == STATED
    assert "stretched" not in caplog.text


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        (YARN | {"factor": 0.5}, "by 0.5: give its 'factor'"),
        (YARN | {"factor": "4"}, "by '4': give its 'factor'"),
        (YARN | {"factor": float("nan")}, "by nan: give its 'factor'"),
        (YARN | {ORIGINAL: None}, f"from None positions: give '{ORIGINAL}'"),
        (YARN | {ORIGINAL: "long"}, f"from 'long' positions: give '{ORIGINAL}'"),
        (YARN | {ORIGINAL: -1}, f"from -1 positions: give '{ORIGINAL}'"),
    ],
)
def test_a_rope_that_is_stretched_wrongly(demo, rope, said):
    change(demo / "config.json", rope_parameters=rope)
    with pytest.raises(CheckpointError) as caught:
        describe(open_checkpoint(str(demo)))
    assert said in str(caught.value)


@pytest.mark.parametrize("length", ["long", float("nan"), -1, 2**60, True])
def test_a_length_that_is_none(demo, length):
    change(demo / "config.json", max_position_embeddings=length)
    with pytest.raises(CheckpointError, match="gives no usable length"):
        describe(open_checkpoint(str(demo)))


TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}"


@pytest.mark.parametrize(
    ("generation", "config", "eos_token", "ending", "expected"),
    [
        ([2, 3], 2, "<|eos|>", "<|end|>", (2, 3)),
        (2, 2, "<|end|>", "", (2, 3)),  # A fine-tune that changed the tokenizer alone.
        (2, 2, "<|eos|>", "<|end|>\n", (2, 3)),  # One that changed the template alone.
        (2, 2, "<|eos|>", " <|end|>", (2, 3)),
        (None, 3, "<|eos|>", "", (3, 2)),
        ([2, 9999, -1, True, "x"], 2, "<|eos|>", "", (2,)),  # 9999: the model has no row for it.
        (2, 2, "<|eos|>", "### End", (2,)),
        (2, 2, "<|eos|>", "<|channel|><|end|>", (2,)),  # It ends a part of the answer.
        (2, 2, "<|eos|>", "{{ raise_exception('no') }}", (2,)),
        (2, 2, None, "<|end|>", (2, 3)),
    ],
)
def test_an_answer_ends_with_what_any_of_the_files_says(
    demo, generation, config, eos_token, ending, expected
):
    change(demo / "generation_config.json", eos_token_id=generation)
    change(demo / "config.json", eos_token_id=config)
    template = f"{TEMPLATE}{ending}{{% endfor %}}"
    change(demo / "tokenizer_config.json", eos_token=eos_token, chat_template=template)
    card = read_served_model(str(demo), None).card
    assert card.eos_token_ids == expected


def test_without_a_tokenizer_or_a_template_the_configs_say_it(demo):
    description = describe(open_checkpoint(str(demo)))
    assert end_token_ids(description, None) == (2, 3)
    change(demo / "tokenizer_config.json", chat_template=None)
    assert end_token_ids(description, load_tokenizer(description)) == (2, 3)
