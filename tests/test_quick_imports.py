import gc

import pytest

from molink.quick_imports import quick_imports


def test_garbage_is_collected_again_whatever_the_import_comes_to():
    with pytest.raises(ImportError), quick_imports():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()
