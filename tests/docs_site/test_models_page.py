"""docs/models.md is whole, of the installed transformers, and says what the self-test says."""

import pytest
import transformers

from tools.models_page.page import PAGE, page, pcs_needed, read_results, shape_of
from tools.models_page.published import PUBLISHED
from tools.models_page.trials import CRASHED, NO_DECODER, families, try_config, wholes

ANEW = "run `make models`"


def test_the_page_is_written_from_the_stored_results():
    assert PAGE.read_text(encoding="utf-8") == page(read_results()), ANEW


def test_the_results_are_of_the_installed_transformers():
    results = read_results()
    assert results.transformers == transformers.__version__, ANEW
    tried = [trial.name for trial in results.trials]
    assert tried == [*families(), *wholes(), *(one.name for one in PUBLISHED)], ANEW


def test_every_refusal_is_a_sentence():
    for trial in read_results().trials:
        assert trial.served or (trial.why.endswith(".") and "\n" not in trial.why)
        assert not trial.why.startswith(CRASHED)


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "bloom", "mamba", "t5gemma2", "mistral3"])
def test_a_family_is_still_what_the_page_says(name):
    stored = next(trial for trial in read_results().trials if trial.name == name)
    assert try_config(name, name, {}) == stored, ANEW


def test_every_published_setting_can_be_tried():
    names = {trial.name: trial for trial in read_results().trials}
    assert all(names[one.name].why != NO_DECODER for one in PUBLISHED)
    assert sum(one.home for one in PUBLISHED) >= 20


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Qwen3.5 27B", 26.9), ("gpt-oss 20B", 20.9), ("Llama 3.3 70B", 70.6), ("Phi-4 14B", 14.7)],
)
def test_shapes_are_those_of_the_published_models(name, billions):
    model = next(one for one in PUBLISHED if one.name == name)
    assert shape_of(model).parameters / 1e9 == pytest.approx(billions, rel=5e-3)


def test_more_memory_needs_no_more_pcs():
    shape = shape_of(next(one for one in PUBLISHED if one.name == "Llama 3.1 8B"))
    needed = [pcs_needed(shape, gigabytes * 10**9) for gigabytes in (1, 8, 12, 24, 100)]
    assert needed == [None, 4, 2, 1, 1]
