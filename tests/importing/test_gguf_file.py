"""An imported GGUF file is a checkpoint whose stages give the tokens of the library's model of the
file's numbers."""

import pytest

from molink.importing.gguf_file import import_gguf
from tests.executor.quantized.test_stages import check
from tests.importing.gguf_models import ARCHITECTURES, save_gguf

OVERRIDES = {
    "mistral": {"sliding_window": None},  # As since its second version: files name none.
    "qwen3_moe": {"norm_topk_prob": True},
    "gemma2": {"tie_word_embeddings": False},  # Tied, tiny ones repeat their last word.
    "gemma3_text": {"tie_word_embeddings": False},
}


def imported(path, folder, config=None):
    seen = []
    import_gguf(path, folder, config, lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0
    return folder


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_over_three_uneven_stages(name, tmp_path):
    reference = save_gguf(name, tmp_path / "m.gguf", **OVERRIDES.get(name, {}))
    check(imported(tmp_path / "m.gguf", tmp_path / "out"), reference)
