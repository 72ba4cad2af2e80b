"""A row that is no number, in a real ring of three stages in fp16 beside eight streams."""

import asyncio

import pytest
import torch
from safetensors.torch import load_file, save_file

from molink.config.setting import settings_of
from molink.config.settings import ServeSettings
from molink.coordinator.local.start import start_local
from molink.errors import RowsRefusedError
from molink.node import stage_handle
from molink.serving.service import GenerationRequest
from molink_scheduler.request import SamplingParams
from tests.end_to_end.forked import stage
from tests.end_to_end.forked.asking import ADDRESS, CHANGES
from tests.end_to_end.forked.server import STAGES, server_of
from tests.end_to_end.spoiling_stage import SPOIL

STREAMS, TOKENS = 8, 20
"""Few, as each is answered alone first; users ask again for as long as there is to be somebody."""
LONG = GenerationRequest((5,) * 70, SamplingParams(4, temperature=0.0))
SPAN_TOKENS = 128
"""Longest span: no prompt is cut. Pieces cut just in time have 16 rows where the machine is busy,
as many as a batch of all streams, and those are not spoilt."""
LOUD = 96
"""Token whose numbers grow beyond fp16 in the third layer, on the second stage."""


def loud_model(source, directory):
    """The tiny model; the row of `LOUD` is at the end of fp16 in one channel, and a unit of the
    third layer adds to that what it finds there. Nothing else is added to a row, so that no sum of
    other grouping changes a token."""
    directory.mkdir()
    for file in source.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in tensors.items():
        if "o_proj" in name or "down_proj" in name:
            tensor.zero_()
    embedding = tensors["model.embed_tokens.weight"]
    embedding[LOUD] = 0.0
    embedding[LOUD, 0] = torch.finfo(torch.float16).max
    tensors["lm_head.weight"][LOUD] = 0.0  # Nobody answers with it.
    mlp = "model.layers.2.mlp."
    for name in ("gate_proj", "up_proj"):
        tensors[f"{mlp}{name}.weight"][0] = 0.0
        tensors[f"{mlp}{name}.weight"][0, 0] = 2.0
    tensors[f"{mlp}down_proj.weight"][0, 0] = 20.0
    save_file(tensors, path, {"format": "pt"})
    return directory


async def answer_to(service, request: GenerationRequest, begun=None) -> list[int]:
    tokens = []
    async for event in service.generate(request):
        tokens += event.token_ids
        if begun is not None:
            begun.set()
    return tokens


def stream(number: int) -> GenerationRequest:
    return GenerationRequest((3 + number, 40), SamplingParams(TOKENS, temperature=0.0))


async def streamed_until(service, number: int, begun, refused) -> list[list[int]]:
    """A user who asks again until all bad requests are refused, and all answers. However slow a
    machine refuses, each bad request is beside all streams so."""
    answers = [await answer_to(service, stream(number), begun)]
    while not refused.is_set():
        answers.append(await answer_to(service, stream(number)))
    return answers


async def streams_beside(model, bad: GenerationRequest):
    """What eight streams are answered alone, then beside bad requests; the events and rings."""
    settings = settings_of(
        ServeSettings, model=str(model), nodes=3, dtype="float16", span_tokens=SPAN_TOKENS
    )
    async with start_local(settings) as cluster, asyncio.timeout(120):
        service = cluster.service
        await service.until_ready()
        expected = [await answer_to(service, stream(i)) for i in range(STREAMS)]
        begun = [asyncio.Event() for _ in range(STREAMS)]
        refused = asyncio.Event()
        running = [
            asyncio.create_task(streamed_until(service, i, one, refused))
            for i, one in enumerate(begun)
        ]
        await asyncio.gather(*(one.wait() for one in begun))
        for _ in range(2):
            with pytest.raises(RowsRefusedError) as caught:
                await answer_to(service, bad)
        refused.set()
        for answers, one in zip(await asyncio.gather(*running), expected, strict=True):
            assert answers == [one] * len(answers)
        assert await answer_to(service, stream(0)) == expected[0]
        assert len(cluster.rings) == 1
        events = service.events.report(0).events
        stages = service.cluster().rings[0].stages
        assert not any(stage.frames_refused for stage in stages)
        return str(caught.value), [one.kind for one in events], [one.text for one in events]


@pytest.fixture(autouse=True)
def forked_stages(monkeypatch):
    monkeypatch.setattr(stage_handle, "STAGE_MODULE", stage.__name__)
    monkeypatch.setenv(ADDRESS, server_of(*STAGES))


async def test_a_prompt_that_overflows_ends_alone_and_nobody_is_blamed(tiny_llama, tmp_path):
    bad = GenerationRequest((5, LOUD, 7), SamplingParams(4, temperature=0.0))
    said, kinds, _ = await streams_beside(loud_model(tiny_llama, tmp_path / "loud"), bad)
    assert "grow beyond the number format" in said
    assert not {"rows_refused", "ring_ended", "ring_resumed", "request_moved"} & {*kinds}


async def test_a_member_that_sends_infinity_spoils_its_request_alone_and_is_noted(
    tiny_llama, tmp_path, monkeypatch
):
    monkeypatch.setenv(CHANGES, SPOIL.format(rows_min=17))
    said, kinds, texts = await streams_beside(loud_model(tiny_llama, tmp_path / "loud"), LONG)
    assert "send it again" in said
    assert not {"ring_ended", "ring_resumed", "request_moved"} & {*kinds}
    noted = [text for kind, text in zip(kinds, texts, strict=True) if kind == "rows_refused"]
    assert noted and all("that are no numbers" in text for text in noted)
