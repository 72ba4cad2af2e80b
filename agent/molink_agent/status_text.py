"""Text of the agent's state, for its owner: in the terminal, in its log, in the journal.

Made from the answer to `molink agent status`, so that the terminal in which the agent runs shows
the same. Each sentence begins with the state's own name, as guides and GET /cluster call it; where
several devices are lent, with the device before it. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from molink.json_object import JsonObject
from molink.terminal.amounts import duration_text, progress_text
from molink_agent.limits.limits import OwnerLimits, plain_limits
from molink_scheduler.units import GB, MB, gb_text


class LoadedPart(TypedDict):
    """How far a stage's loading is."""

    kind: str
    fraction: float
    message: str
    total_bytes: NotRequired[int]
    """Bytes of a download that is under way."""
    bytes_per_s: NotRequired[float]
    link_lost: NotRequired[bool]
    """Whether it "failed" because a link to another PC, or to the coordinator, was lost."""


class LentDevice(TypedDict):
    """Device as the coordinator was told of it."""

    device: str
    lent_bytes: int
    total_bytes: int


class KvLender(TypedDict):
    """Device whose memory is lent for KV of stages."""

    device: str
    """"cpu": main memory."""
    lendable_bytes: int
    """Bytes that are lent now, what is lent counted."""
    held_bytes: int
    why_less: str
    """Why it is less than was set; empty: it is not."""


class HostCachePart(TypedDict):
    """Main memory of a stage for cached KV."""

    taken_bytes: int
    """Bytes that it has taken when it loaded."""
    room_bytes: int
    """Bytes of these that it may use now."""
    held_bytes: int
    why_less: str
    """Why it is not more; empty: it is all."""


class DeviceStatus(TypedDict):
    """Status of one device, and of the node as which it serves."""

    id: str
    name: str
    device: str | None
    connected: bool
    state: str
    refused: str
    """Why the node is not let in; empty: it is, or nobody was asked."""
    reason: str
    layers: list[int] | None
    """[first, behind the last]."""
    model: str | None
    loaded: LoadedPart | None
    """None before the stage was given anything."""
    lends: list[LentDevice]
    shortage: str
    """Why the device is of no use; empty: it is of some."""
    paths: dict[str, str]
    """Path of each link that the ring needs: "direct" or "relay"."""
    host_cache: HostCachePart | None
    """None: it takes none, or serves nothing."""
    kv_tokens_used: int
    busy_share: float
    swap_fallback: str | None


class AgentStatus(DeviceStatus):
    """Status of a PC. What stands beside `devices` of a device is of the first; `shortage` only
    where no device is of any use."""

    cluster: str
    until: str | None
    upload_mbps: float
    limits: JsonObject
    limits_problem: str
    devices: list[DeviceStatus]
    kv_lenders: list[KvLender]
    """Devices that lend; none unless the owner has set it."""


class ShownStatus(AgentStatus, total=False):
    """Status as `molink agent status` shows it, with what the PC has given."""

    given: JsonObject | None
    """Totals in the coordinator's words; None: it does not answer."""
    last_night: JsonObject | None
    model_layers: int | None
    """Layers of the cluster's model; None: not known."""


DOING = {
    "joining": "measuring what this PC can do for the model, a minute at most",
    "standby": "ready, until the coordinator needs it",
    "loading": "{held}",
    "serving": "{held}, on {device}",
    "draining": "finishing or handing over what others count on",
    "paused": "until it is lent again",
    "outdated": "update MoLink",
}
"""Sentence for each state, unless it has a reason of its own."""

LOADING = {"downloading": "downloading the weights of {held}", "loading": "{held}"}
"""Sentences while the progress is known."""

RING_BUILT_ANEW = (
    "the ring is built anew, since two of its PCs do not hear each other any more; nothing has to "
    "be done:"
)
"""Beginning of a sentence on a lost link, of which mostly the end that is gone is at fault."""

WORDS_PER_TOKEN = 0.75
"""Words of English in a token, as makers of models reckon."""

QUARTERS_BYTES_MIN = GB
"""Bytes of a download whose quarters are told: half a minute each on a line of 100 Mbps."""


class StatusNews:
    """Finds what is new in a status since the last one."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._quarters: dict[str, int] = {}
        """Quarters of each device's download that were passed."""

    def update(self, status: AgentStatus) -> list[str]:
        """Sentences that were not shown last time."""
        lines = {"connection": _connection(status, "connection" in self._shown)}
        for device in _devices(status):
            lines |= self._device_sentences(device, _mark(device, status))
        lines["limits"] = str(status["limits_problem"])
        new = [line for topic, line in lines.items() if line and line != self._shown.get(topic)]
        seen = self._shown
        self._shown |= {topic: line for topic, line in lines.items() if line or topic in seen}
        return new + [line for device in _devices(status) for line in self._quarter(device, status)]

    def _quarter(self, device: DeviceStatus, status: AgentStatus) -> list[str]:
        """A line at each quarter of a download, which may take an hour."""
        loaded, node = device["loaded"], str(device.get("id"))
        if loaded is None or loaded.get("total_bytes", 0) < QUARTERS_BYTES_MIN:
            self._quarters.pop(node, None)
            return []
        quarter = int(4 * loaded["fraction"])
        before = self._quarters.setdefault(node, quarter)
        self._quarters[node] = quarter
        if not before < quarter < 4:
            return []
        return [_mark(device, status) + _device_sentence(device)]

    def _device_sentences(self, device: DeviceStatus, mark: str) -> dict[str, str]:
        """Sentences of one device by topic; a device is known by its node's id."""
        doing, trouble = (f"{topic} of {device.get('id')}" for topic in ("doing", "trouble"))
        shown = self._shown.get(doing, "")
        failed = _trouble(device)
        return {
            doing: mark + _doing(device) if _is_reported(device) else shown,
            trouble: failed and mark + failed,
        }


def now_sentence(status: AgentStatus) -> str:
    """The state now, with the progress of what is loading; of several devices one after the
    other."""
    return "; ".join(_mark(one, status) + _device_sentence(one) for one in _devices(status))


def status_lines(status: ShownStatus) -> Iterator[str]:
    """`molink agent status`: a headline, then one thing in each line, for each of several
    devices."""
    yield f"{status['name']} ({status['id']}) in {status['cluster']}"
    devices = status["devices"]
    for device in devices:
        if len(devices) > 1:
            yield f"{device['device'] or 'no device'}: {device['name']} ({device['id']})"
        yield from _device_lines(device, "  " if len(devices) > 1 else "")
    for lender in status.get("kv_lenders", ()):
        yield f"KV lent: {_lender(lender)}"
    yield f"limits:  {_limits(status['limits'])}"
    if status["limits_problem"]:
        yield f"         {status['limits_problem']}"
    if (given := status.get("given")) is not None:
        yield f"given:   {given_text(given, status.get('model_layers'))}"
    if (night := status.get("last_night")) is not None:
        yield f"         last night {given_text(night, status.get('model_layers'))}"


def _device_sentence(device: DeviceStatus) -> str:
    if not _is_reported(device):
        return f"{device['state']}: not connected to the coordinator now; it tries again by itself"
    loaded = device["loaded"]
    if device["state"] == "loading" and loaded is not None and loaded["kind"] in LOADING:
        what = LOADING[loaded["kind"]].format(held=_held(device))
        return f"loading: {what}, {_how_far(loaded)}"
    busy = f", busy {device['busy_share']:.0%} of the time" if device["state"] == "serving" else ""
    return f"{_doing(device)}{busy}"


def _how_far(loaded: LoadedPart) -> str:
    fraction, total = loaded["fraction"], loaded.get("total_bytes")
    if not total:
        return f"{fraction:.0%}"
    amounts = progress_text(fraction * total, total, loaded["bytes_per_s"], "bytes")
    return f"{fraction:.0%}, {amounts}"


def _devices(status: AgentStatus) -> Sequence[DeviceStatus]:
    """Statuses of the devices; the status itself where it is of one device."""
    return status.get("devices") or (status,)


def _is_reported(device: DeviceStatus) -> bool:
    """Whether its state is the coordinator's too; a device that is not let in has no other."""
    return bool(device["connected"] or device.get("refused"))


def _mark(device: DeviceStatus, status: AgentStatus) -> str:
    """Beginning that tells of which device a line is; empty where there is only one."""
    if len(_devices(status)) < 2:
        return ""
    return f"{device['device'] or device['name']}: "


def _held(device: DeviceStatus) -> str:
    """Layers as people count them: both ends are held."""
    if device["layers"] is None:
        return "no layers"
    start, end = device["layers"]
    return f"layers {start} to {end - 1} of {device['model']}"


def _connection(status: AgentStatus, was_connected: bool) -> str:
    if status["connected"]:
        return f"connected to {status['cluster']}"
    lost = "the coordinator is out of reach; it is tried again, nothing has to be done"
    return lost if was_connected else ""


def _doing(device: DeviceStatus) -> str:
    usual = DOING[device["state"]].format(held=_held(device), device=device["device"])
    return f"{device['state']}: {device['reason'] or usual}"


def _trouble(device: DeviceStatus) -> str:
    loaded = device["loaded"]
    if loaded is None or loaded["kind"] != "failed":
        return ""
    if loaded.get("link_lost"):
        return f"{RING_BUILT_ANEW} {loaded['message']}"
    return f"the stage has failed: {loaded['message']}"


def _device_lines(device: DeviceStatus, margin: str) -> Iterator[str]:
    yield f"{margin}state:   {_device_sentence(device)}"
    if device["paths"]:
        links = ", ".join(f"{name} {kind}" for name, kind in device["paths"].items())
        yield f"{margin}links:   {links}"
    lent = ", ".join(
        f"{part['device']} {part['lent_bytes'] / GB:.1f} of {gb_text(part['total_bytes'])}"
        for part in device["lends"]
    )
    yield f"{margin}lends:   {lent or 'nothing yet'}"
    if (cache := device.get("host_cache")) is not None:
        room, held = gb_text(cache["room_bytes"]), gb_text(cache["held_bytes"])
        why = f"; {cache['why_less']}" if cache["why_less"] else ""
        yield f"{margin}cache:   {held} of main memory, {room} at most{why}"


def _lender(lender: KvLender) -> str:
    where = "main memory" if lender["device"] == "cpu" else lender["device"]
    held, most = gb_text(lender["held_bytes"]), gb_text(lender["lendable_bytes"])
    why = f"; {lender['why_less']}" if lender["why_less"] else ""
    return f"{held} of {most} in {where}{why}"


def _limits(limits: Mapping[str, Any]) -> str:
    """OwnerLimits that the owner has set."""
    default = plain_limits(OwnerLimits())
    own = [f"{key} {_value(value)}" for key, value in limits.items() if value != default.get(key)]
    return ", ".join(own) or "none of your own; `molink agent set --help` shows what there is"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(value) if isinstance(value, list) else str(value)


def given_text(given: Mapping[str, Any], model_layers: int | None = None) -> str:
    """Given work in one line: hours, its share of answers in words, upload.

    A PC that holds half of a model's layers has computed half of each word. Without the number of
    the model's layers (None) it is tokens times layers.
    """
    if not (given["uptime_s"] or given["token_layers"] or given["bytes_sent"]):
        return "nothing yet"
    serving = duration_text(given["uptime_s"])
    share = f"{given['token_layers']:,} tokens x layers"
    if model_layers is not None:
        words = round(WORDS_PER_TOKEN * given["token_layers"] / model_layers)
        share = f"a share of answers that comes to {words:,} words"
    return f"{serving} of serving, {share}, {given['bytes_sent'] / MB:,.1f} MB sent"
