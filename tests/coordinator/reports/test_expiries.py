"""What is told of certificates and invites that end."""

from contextlib import closing

import pytest

from molink.config.groups import ApiSettings
from molink.control.certificate import NOT_AFTER, operators_certificate, own_certificate
from molink.control.registry.registry import Registry
from molink.coordinator.reports.expiries import certificates_shown, invites_report
from molink.errors import UserError
from molink.report.cluster import InvitesReport
from tests.certificates import UNTIL, Authority

NOW = 1_000_000.0


def shown(settings, agents=None):
    return {one.name: one.ends_unix_s for one in certificates_shown(settings, agents)}


def test_without_tls_none_is_shown():
    assert certificates_shown(ApiSettings()) == ()


def test_own_certificates_hold_for_ever(tmp_path):
    ends = shown(ApiSettings(api_tls=True), own_certificate(tmp_path))
    assert ends == {"api": NOT_AFTER.timestamp(), "agents": NOT_AFTER.timestamp()}


def test_an_operators_are_read_as_they_are_at_the_start(tmp_path):
    made = Authority.make(tmp_path).sign_for("10.0.0.1")
    files = operators_certificate(made.certificate, made.key, made.ca, "10.0.0.1")
    api = ApiSettings(api_tls=True, api_tls_cert=made.certificate, api_tls_key=made.key)
    assert shown(api, files) == dict.fromkeys(("api", "agents", "authority"), UNTIL.timestamp())
    with pytest.raises(UserError, match="cannot be read"):
        certificates_shown(ApiSettings(api_tls=True, api_tls_cert="none.pem", api_tls_key="x"))


def test_a_text_that_is_no_certificate_has_no_end(tmp_path):
    """Whoever serves with it says what is wrong."""
    (tmp_path / "api.pem").write_text("hello")
    api = ApiSettings(api_tls=True, api_tls_cert=str(tmp_path / "api.pem"), api_tls_key="x")
    assert certificates_shown(api) == ()


def test_open_invites_are_counted_with_the_first_end(tmp_path):
    with closing(Registry.open(tmp_path)) as registry:
        assert invites_report(registry, NOW) == InvitesReport(0, None)
        for name, expires_s in (("a", 60.0), ("b", 30.0), ("c", 90.0)):
            registry.make_invite(expires_s, 1, name, NOW, "https://10.0.0.1:1")
        registry.revoke("b", NOW)
        assert invites_report(registry, NOW) == InvitesReport(2, NOW + 60)
        assert invites_report(registry, NOW + 60) == InvitesReport(1, NOW + 90)
        registry._reader.close()
        assert invites_report(registry, NOW) is None
