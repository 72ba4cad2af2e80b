"""Words that a tokenizer knows and the model does not, in a real ring beside eight streams."""

import asyncio

import pytest

from molink.config.setting import settings_of
from molink.config.settings import ServeSettings
from molink.coordinator.local.start import start_local
from molink.errors import InvalidRequestError
from molink.node import stage_handle
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationRequest
from molink_scheduler.request import SamplingParams
from tests.end_to_end.forked import stage
from tests.end_to_end.forked.asking import ADDRESS
from tests.end_to_end.forked.server import STAGES, server_of

STREAMS, TOKENS = 8, 120
BEYOND = 97
"""The first token that the tiny model has no row for."""

BAD = (
    GenerationRequest((5, BEYOND), SamplingParams(4)),
    GenerationRequest((2**31 - 1,), SamplingParams(4)),
    GenerationRequest((5,), SamplingParams(4, logit_bias=((BEYOND, 1.0),))),
    GenerationRequest((5,), SamplingParams(4, stop_token_ids=(BEYOND,), min_tokens=2)),
)


async def answer_to(service, request: GenerationRequest, begun=None) -> int:
    count = 0
    async for event in service.generate(request):
        count += len(event.token_ids)
        if begun is not None:
            begun.set()
    return count


@pytest.mark.parametrize("is_checked", [True, False])
async def test_they_end_their_request_and_eight_streams_go_on(is_checked, tiny_llama, monkeypatch):
    """Refused by the coordinator; and by the head, where a coordinator does not look."""
    monkeypatch.setattr(stage_handle, "STAGE_MODULE", stage.__name__)
    monkeypatch.setenv(ADDRESS, server_of(*STAGES))
    if not is_checked:
        monkeypatch.setattr(ModelCard, "check_token_ids", lambda card, token_ids: None)
    async with start_local(settings_of(ServeSettings, model=str(tiny_llama), nodes=2)) as cluster:
        service = cluster.service
        async with asyncio.timeout(60):
            await service.until_ready()
            begun = [asyncio.Event() for _ in range(STREAMS)]
            streams = [
                asyncio.create_task(
                    answer_to(service, GenerationRequest((3 + i,), SamplingParams(TOKENS)), one)
                )
                for i, one in enumerate(begun)
            ]
            await asyncio.gather(*(one.wait() for one in begun))
            said = "none for the token" if is_checked else "not in the vocabulary"
            for request in BAD:
                with pytest.raises(InvalidRequestError, match=said):
                    await answer_to(service, request)
            assert await asyncio.gather(*streams) == [TOKENS] * STREAMS
        kinds = {one.kind for one in service.events.report(0).events}
        assert not kinds & {"ring_ended", "ring_resumed", "stage_lost", "request_moved"}, kinds
        (report,) = service.cluster().rings
        assert [stage.frames_refused for stage in report.stages] == [0, 0]
        assert len(cluster.rings) == 1
