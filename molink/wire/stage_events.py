"""Messages without rows, turned into facts for the core of the stage that gets them."""

from typing import assert_never

from molink.wire import frames
from molink_scheduler import events

REFUSALS = (frames.FinishReason.REFUSED, frames.FinishReason.OVERFLOWN)
"""Reasons with which a sequence ends without a token."""


Plain = frames.Order | frames.Forget | frames.BlocksFetched | frames.Sampled
"""Messages without rows."""


def stage_event(message: Plain) -> events.StageEvent:
    """Event that such a message is to a stage's core."""
    match message:
        case frames.Sampled(batch_class, micro_batch, spans, tokens, stamps):
            sampled = tuple(
                events.SampledToken(
                    one.request_id,
                    one.token_id,
                    finished=one.finish is not frames.FinishReason.NONE,
                    refused=one.finish in REFUSALS,
                )
                for one in tokens
            )
            return events.BatchReturned(
                batch_class,
                micro_batch,
                spans,
                sampled,
                stamps,
                drafts=message.drafts,
                forced=message.forced,
            )
        case frames.Forget(release):
            return events.ReleaseArrived(release)
        case frames.ChangeCache(change):
            return events.CacheChanged(change)
        case frames.SetCapacity(capacity):
            return events.CapacityChosen(capacity)
        case frames.BlocksFetched(fetched):
            return events.FetchArrived(fetched)
        case frames.Submit(request):
            return events.RequestSubmitted(request)
        case frames.Cancel(request_id):
            return events.RequestCancelled(request_id)
        case frames.SetCodec(codec):
            return events.CodecChosen(codec)
        case frames.ClearCache():
            return events.CacheCleared()
        case _:
            assert_never(message)
