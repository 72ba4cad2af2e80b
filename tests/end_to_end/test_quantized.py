"""`molink serve` of quantized checkpoints: tokens are the library's, refusals are one sentence."""

import asyncio
import json

import pytest
import torch

from tests.engine.model.quantized.checkpoints import save_gpt_oss, save_quantized
from tests.engine.model.quantized.formats import FORMATS
from tests.engine.tiny_models import generate
from tests.importing.gguf_models import save_gguf
from tests.sweeps import swept

PROMPTS = [[5, 9, 70, 11], [3] * 21, [150, 7]]


async def check(tools, directory, reference):
    options = ("--nodes", "2", "--dtype", "float32", "--kv-tokens", "512")
    body = {"max_tokens": 10, "temperature": 0, "ignore_eos": True}
    with tools.serving(str(directory), *options) as server:
        answers = await asyncio.gather(
            *(
                tools.post(server.url, "/generate", {"prompt_token_ids": prompt, **body})
                for prompt in PROMPTS
            )
        )
    assert [status for status, _ in answers] == [200] * len(PROMPTS)
    with torch.inference_mode():
        expected = [generate(reference, prompt, 10) for prompt in PROMPTS]
    assert [answer["token_ids"] for _, answer in answers] == expected


SAVE = {
    "awq": lambda folder: save_quantized("llama", folder, FORMATS["awq"]),
    "experts in mxfp4": save_gpt_oss,
}


@pytest.mark.parametrize("name", swept(SAVE, "experts in mxfp4"))
async def test_four_bits_over_two_processes(tools, tmp_path, name):
    await check(tools, tmp_path, SAVE[name](tmp_path))


def test_a_scheme_that_is_not_read(tools, tmp_path):
    save_quantized("llama", tmp_path, FORMATS["awq"])
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = tools.run_molink("serve", str(tmp_path), "--port", "0")
    assert result.returncode == 2
    assert "bitsandbytes" in result.stderr
    assert "take a version of it" in result.stderr
    assert "Traceback" not in result.stderr


async def test_an_imported_gguf_file_over_two_processes(tools, tmp_path):
    reference = save_gguf("llama", tmp_path / "m.gguf")
    result = tools.run_molink("import", str(tmp_path / "m.gguf"), "--out", str(tmp_path / "new"))
    assert result.returncode == 0, result.stderr
    await check(tools, tmp_path / "new", reference)
