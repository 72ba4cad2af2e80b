"""One look at a cluster: the bodies of three answers, or why there are none.

It is kept as it came, so that a recording shows more with a newer dashboard; `history` reads it.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from molink.errors import UserError
from molink.printable import printable_line
from molink.report.plain import Json


@dataclass(frozen=True, slots=True)
class Observation:
    """Answers of one poll."""

    at_s: float
    """Seconds since 1970, by the clock of whoever looked."""
    cluster: Json = field(default_factory=dict)
    """Body of GET /cluster."""
    requests: tuple[Json, ...] | None = None
    """Requests of GET /cluster/requests that are live or have ended since the look before; None:
    this server has no such list."""
    events: tuple[Json, ...] | None = None
    """New ones of GET /cluster/events; None: this server has no such list."""
    trouble: str = ""
    """Sentence that says what went wrong; empty: nothing did."""
    keys: tuple[Json, ...] | None = None
    """Keys of GET /cluster/requests; None: this server tells of none."""

    def line(self) -> str:
        """The observation as one line of JSON, for a recording."""
        fields: dict[str, object] = {"at_s": round(self.at_s, 3), "cluster": self.cluster}
        for name in ("requests", "events", "keys"):
            if (value := getattr(self, name)) is not None:
                fields[name] = value
        if self.trouble:
            fields["trouble"] = self.trouble
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def of_line(cls, line: str | bytes) -> "Observation":
        """The observation of a line. Raises UserError when it is none."""
        try:
            body = json.loads(line)
            at_s, cluster = float(body["at_s"]), body["cluster"]
            requests, events = _listed(body.get("requests")), _listed(body.get("events"))
            keys = _listed(body.get("keys"))
            if not (isinstance(cluster, dict) and 0 <= at_s < 1e12):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            raise UserError(
                "the recording has a line that is no observation: give one that `molink dashboard "
                "--record` wrote"
            ) from None
        trouble = printable_line(str(body.get("trouble") or ""))
        return cls(at_s, cluster, requests, events, trouble, keys)


def _listed(value: Any) -> tuple[Json, ...] | None:
    if not isinstance(value, list):
        return None
    return tuple(one for one in value if isinstance(one, dict))
