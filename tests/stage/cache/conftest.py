import pytest

from tests.engine.tiny_models import save_tiny


@pytest.fixture(scope="package")
def model(tmp_path_factory):
    """Folder of a tiny model, of whose stages KV is handed over."""
    directory = tmp_path_factory.mktemp("model")
    save_tiny("llama", directory)
    return directory
