"""What an operator asks of a coordinator: taken, or refused in a sentence that names the option."""

from pathlib import Path
from typing import Any

import pytest

from molink.config.up_settings import UpSettings
from molink.errors import UserError


def settings(**options: Any) -> UpSettings:
    return UpSettings(model="demo", data_dir=Path("unused"), **options)


def test_a_cap_on_weights_is_kept_in_bytes():
    assert settings(weights_mbps=8.0).weights_bytes_per_s == 1e6
    assert settings().weights_bytes_per_s is None


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--port", {"port": 65536}),
        ("--broker-port", {"broker_port": -1}),
        ("--relay-port", {"relay_port": 70000}),
        ("--tls-key", {"tls_cert": "cert.pem"}),
        ("--min-nodes", {"min_nodes": 0}),
        ("--max-model-len", {"model_len_max": 1}),
        ("--micro-batches", {"micro_batch_count": 0}),
        ("--span-tokens", {"span_tokens": 0}),
        ("--context-tokens", {"context_tokens": 1}),
        ("--wire", {"codec": "zip"}),
        ("--policy", {"policy": "luck"}),
        ("--tpot-ms", {"tpot_ms": float("nan")}),
        ("--weights-mbps", {"weights_mbps": 0.0}),
        ("--weights-mbps", {"weights_mbps": float("inf")}),
    ],
)
def test_what_cannot_be_is_refused_by_name(option, values):
    with pytest.raises(UserError, match=option):
        settings(**values)
