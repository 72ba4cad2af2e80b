"""When what lets people in ends: the certificates that a coordinator shows, and its open invites.

Certificates are read once, at the start: those are shown until the next one, whatever has become
of the files since.
"""

from datetime import datetime

from molink.config.groups import ApiSettings
from molink.control.addresses import TlsFiles
from molink.control.certificate import NOT_AFTER, first_end
from molink.control.registry.registry import Registry
from molink.errors import StorageError
from molink.report.cluster import CertificateReport, InvitesReport


def certificates_shown(
    api: ApiSettings, agents: TlsFiles | None = None
) -> tuple[CertificateReport, ...]:
    """Certificates of the users' API and of the port for agents, and who signed the latter. Raises
    UserError for a file that cannot be read."""
    ends: dict[str, datetime | None] = {}
    if api.api_tls_cert:
        ends["api"] = first_end(TlsFiles(api.api_tls_cert, api.api_tls_key).chain())
    elif api.api_tls:
        ends["api"] = NOT_AFTER
    if agents is not None:
        ends["agents"] = first_end(agents.chain())
        ends["authority"] = first_end(agents.trust.authority)
    return tuple(CertificateReport(name, at.timestamp()) for name, at in ends.items() if at)


def invites_report(registry: Registry, now: float) -> InvitesReport | None:
    """Invites with which PCs can join; None: the registry cannot be read now."""
    try:
        ends = [one.expires for one in registry.list_invites() if one.state(now) == "usable"]
    except StorageError:
        return None
    return InvitesReport(len(ends), min(ends, default=None))
