"""A link's statistics as they are reported to the supervisor and shown in GET /cluster."""

from molink.stage_protocol.health import LinkHealth
from molink.transport.link.paced_link import LinkStatistics

__all__ = ["link_health"]


def link_health(link: LinkStatistics) -> LinkHealth:
    """Flatten what the link and its pacer say."""
    pacer = link.pacer
    return LinkHealth(
        name=link.name,
        messages_sent=link.messages_sent,
        bytes_sent=link.bytes_sent,
        decode_waiting=link.waiting[0],
        prefill_waiting=link.waiting[1],
        decode_queued_bytes=link.queued_bytes[0],
        prefill_queued_bytes=link.queued_bytes[1],
        chunk_bytes=link.chunk_bytes or pacer.chunk_bytes,
        rate_mbps=round(pacer.rate_mbps, 3),
        rtt_ms=round(pacer.rtt_ms, 2),
        queueing_delay_ms=round(pacer.queueing_delay_ms, 2),
        in_flight_bytes=pacer.in_flight_bytes,
        foreign_upload=pacer.foreign_upload,
        acks_refused=pacer.acks_refused,
    )
