"""Every format of quantized weights in four architectures: `make formats`.

Three uneven stages in one process. In fp32 the tokens are those of the library's model of the
numbers that the file means. In bf16 the log-probabilities are no further from fp32 than twice
those of stages with the same weights in bf16 (docs/benchmarks/quantized.md, Rounding): the worst
of sixteen prompts, with experts the median, for rounding sends a row near a tie to another expert,
packed or not. One architecture of each format is served by three processes, through `molink import`
where the format wants it.
"""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from molink.importing.gguf.file import import_gguf
from molink.importing.plain_model import import_plain
from tests.engine.model.quantized.checkpoints import save_gpt_oss, save_quantized
from tests.engine.model.quantized.formats import FORMATS, GPTQ_SCHEME, Format, gptq
from tests.engine.model.quantized.test_stages import check, differences
from tests.engine.test_exactness import jobs_of
from tests.engine.tiny_models import generate, save_tiny
from tests.importing.gguf_models import save_gguf
from tests.importing.test_plain_model import reference_of

pytestmark = pytest.mark.formats

MODELS = ("llama", "qwen3", "mixtral", "gpt_oss")
WITH_EXPERTS = ("mixtral", "gpt_oss")
GGUF_TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")
PROMPTS = [[5, 9, 70, 11], [3] * 21, [150, 7]]
BOUND = 2.0
"""Of the difference in bf16, in differences of bf16 weights."""

WIDE = {"hidden_size": 256, "intermediate_size": 384}
"""Rows of whole groups of 128."""


@dataclass(frozen=True)
class Written:
    """A checkpoint to serve, and the library's model of its numbers."""

    directory: Path
    reference: Any
    command: tuple[str, ...] = ()
    """Of `molink`, which makes the checkpoint."""


Write = Callable[[str, Path], Written]


def in_format(form: Format, **sizes: int) -> Write:
    """Written as the format's own tools write it; of gpt-oss the attention only."""

    def write(model: str, folder: Path) -> Written:
        directory = folder / "model"
        return Written(directory, save_quantized(model, directory, form, **sizes))

    return write


def gptq_of(group: int) -> Write:
    form = Format(GPTQ_SCHEME | {"group_size": group}, lambda plain: gptq(plain, group=group))
    return in_format(form, **WIDE)


def mxfp4(model: str, folder: Path) -> Written:
    return Written(folder / "model", save_gpt_oss(folder / "model"))


def gguf_of(kind: str) -> Write:
    def write(model: str, folder: Path) -> Written:
        reference = save_gguf(model, folder / "m.gguf", [kind])
        import_gguf(folder / "m.gguf", folder / "model", None, lambda done, total: None)
        return Written(folder / "model", reference, ("import", str(folder / "m.gguf")))

    return write


def rounded_to(bits: str) -> Write:
    def write(model: str, folder: Path) -> Written:
        save_tiny(model, folder / "plain")
        command = ("import", str(folder / "plain"), "--weights", bits)
        command += ("--group", "32") if bits == "int4" else ()
        import_plain(folder / "plain", folder / "model", bits, 32, lambda done, total: None)
        shutil.copytree(folder / "plain", folder / "read")  # What is read so is no model any more.
        return Written(
            folder / "model", reference_of(folder / "read", folder / "model", 32), command
        )

    return write


WRITERS: dict[str, Write] = {
    "compressed-tensors, 4 bits": in_format(FORMATS["pack-quantized"]),
    "the same, with zero points": in_format(FORMATS["pack-quantized asymmetric"]),
    "the same, 8 bits in groups": in_format(FORMATS["pack-quantized 8 bits"]),
    "compressed-tensors, int8": in_format(FORMATS["int8 channel"]),
    "compressed-tensors, FP8": in_format(FORMATS["fp8 channel"]),
    "AWQ": in_format(FORMATS["awq"]),
    "GPTQ, groups of 32": gptq_of(32),
    "GPTQ, groups of 64": gptq_of(64),
    "GPTQ, groups of 128": gptq_of(128),
    "FP8 per tensor": in_format(FORMATS["fp8 tensor"]),
    "FP8 in blocks": in_format(FORMATS["fp8 block"], **WIDE),
    "MXFP4": mxfp4,
    **{f"GGUF {kind.upper()}": gguf_of(kind) for kind in GGUF_TYPES},
    "`molink import --weights int4`": rounded_to("int4"),
    "`molink import --weights int8`": rounded_to("int8"),
}

ONLY_GPT_OSS = ("MXFP4",)
PAIRS = [
    (name, model)
    for name in WRITERS
    for model in MODELS
    if model == "gpt_oss" or name not in ONLY_GPT_OSS
]


@pytest.mark.parametrize(("name", "model"), PAIRS)
def test_over_three_uneven_stages(name, model, tmp_path, cell):
    cell(name, model)
    one = WRITERS[name](model, tmp_path)
    check(one.directory, one.reference)
    times = times_of_plain(one, tmp_path / "bf16", median if model in WITH_EXPERTS else max)
    cell.found = f"equal, {times:.2f}"
    assert times <= BOUND


def times_of_plain(one: Written, plain: Path, typical: Callable[[list[float]], float]) -> float:
    """How far bf16 is from fp32, in what stages with the same weights in bf16 are."""
    one.reference.save_pretrained(plain)
    prompts = [job.prompt for seed in (1, 3) for job in jobs_of(seed)]
    packed, whole = (
        typical(differences(directory, one.reference, prompts))
        for directory in (one.directory, plain)
    )
    assert whole > 0
    return packed / whole


@pytest.mark.parametrize("name", WRITERS)
async def test_through_rest(name, tools, tmp_path, cell):
    model = "gpt_oss" if name in ONLY_GPT_OSS else "llama"
    cell(name, "through REST")
    one = WRITERS[name](model, tmp_path)
    directory = one.directory
    if one.command:
        directory = tmp_path / "imported"
        result = tools.run_molink(*one.command, "--out", str(directory))
        assert result.returncode == 0, result.stderr
    options = ("--nodes", "3", "--layers", "0-2,2-3,3-7", "--dtype", "float32")
    body = {"max_tokens": 10, "temperature": 0, "ignore_eos": True}
    with tools.serving(str(directory), *options, "--kv-tokens", "512") as server:
        answers = await asyncio.gather(
            *(
                tools.post(server.url, "/generate", {"prompt_token_ids": prompt, **body})
                for prompt in PROMPTS
            )
        )
    assert [status for status, _ in answers] == [200] * len(PROMPTS)
    expected = [generate(one.reference, prompt, 10) for prompt in PROMPTS]
    assert [answer["token_ids"] for _, answer in answers] == expected
    cell.found = "equal"
