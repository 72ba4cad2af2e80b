"""`molink` as it was one protocol ago: it says an older number and compares none."""

from molink.wire import protocol

protocol.PROTOCOL_VERSION -= 1
protocol.PROTOCOL_MIN -= 1  # Before anything else is imported, which copies them.

from molink.cli.main import main  # noqa: E402
from molink.control import versions  # noqa: E402
from molink.control.messages import assignment, joining, payloads  # noqa: E402

TOLD_IN = (
    joining.JoinRequest,
    joining.JoinAnswer,
    payloads.Presence,
    assignment.Assignment,
    payloads.ShadowOrder,
    payloads.CoordinatorPresence,
)

if __name__ == "__main__":
    versions.Protocols.trouble = lambda self, number: ""  # type: ignore[method-assign]
    for kind in TOLD_IN:
        for name in kind.model_fields.keys() & {"protocol", "protocol_min"}:
            kind.model_fields[name].exclude = True
        kind.model_rebuild(force=True)
    main()
