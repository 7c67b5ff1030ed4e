"""What every test may use. Fixtures of one folder live in that folder's own conftest.py."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of this checkout."""
    return Path(__file__).resolve().parents[1]
