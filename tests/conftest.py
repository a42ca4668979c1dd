"""Shared by all tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "docs" / "tools"))
SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data():
    """The folder of data sets that do not come along; where it is absent, the test is skipped."""
    if not SHARED.is_dir():
        pytest.skip("the shared data sets are not beside this repository")
    return SHARED
