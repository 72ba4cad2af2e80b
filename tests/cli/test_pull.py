"""`molink pull`: weights before they are served."""

from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from molink.cli.models.pull import pull
from molink.errors import UserError


class Hub:
    """Checkpoint of two weight files, which keeps what was asked for."""

    def __init__(self, hub_id):
        self.hub_id, self.asked = hub_id, []

    def weight_map(self):
        return {"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"}

    def weight_file(self, name):
        self.asked.append(name)


@pytest.fixture
def hub(monkeypatch):
    checkpoint = Hub("owner/model")
    monkeypatch.setattr("molink.checkpoint.checkpoint.open_checkpoint", lambda model: checkpoint)
    monkeypatch.setattr("molink.checkpoint.description.describe", lambda of: SimpleNamespace())
    return checkpoint


def test_each_weight_file_is_fetched_once(hub):
    result = CliRunner().invoke(pull, ["owner/model"], catch_exceptions=False)
    assert hub.asked == ["1.safetensors", "2.safetensors"]
    assert "2.safetensors, 2 of 2" in result.stderr
    assert "molink serve owner/model" in result.stdout


def test_nothing_comes_of_a_model_that_cannot_be_served(hub, monkeypatch):
    def refused(checkpoint):
        raise UserError("It is of a family that is not served.")

    monkeypatch.setattr("molink.checkpoint.description.describe", refused)
    with pytest.raises(UserError, match="not served"):
        CliRunner().invoke(pull, ["owner/model"], catch_exceptions=False)
    assert not hub.asked


def test_a_folder_is_here_already():
    with pytest.raises(UserError, match="molink serve"):
        CliRunner().invoke(pull, ["molink/models/demo"], catch_exceptions=False)
