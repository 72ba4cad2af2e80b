"""One line for each client: name, version, what was tried, and how it went."""

from dataclasses import dataclass

from tools.clients.server import Requests

__all__ = ["Result"]

REFUSALS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one client."""

    name: str
    package: str
    """With its version."""
    tried: str
    why: str = ""
    """Why it failed; empty: it passed."""
    not_run: bool = False
    """Whether it could not be had, which is no failure of ours."""

    @classmethod
    def of(cls, name: str, package: str, tried: str, why: str, requests: Requests) -> "Result":
        """The result of a client that was run; a request that was refused is a failure, whatever
        the client made of it."""
        distinct = list(dict.fromkeys(requests.refused))
        refused = "; ".join(distinct[:REFUSALS_SHOWN])
        whole = "; ".join(one for one in (why, f"refused: {refused}" if refused else "") if one)
        return cls(name, package, tried, whole)

    @property
    def passed(self) -> bool:
        """Whether it was run and did what it should."""
        return not self.why

    def line(self) -> str:
        """One line of the report that `make clients` prints."""
        mark = "pass" if self.passed else "not run" if self.not_run else "FAIL"
        return f"{mark:8}{self.package:48} {self.tried}" + (f": {self.why}" if self.why else "")
