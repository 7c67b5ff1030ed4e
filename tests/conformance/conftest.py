"""Every backend in one list: a new one joins the suite by being named here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.model.ops import Backend
from headrace.worker.backends import make_backend
from tests.installed_backends import INSTALLED_BACKENDS

collect_ignore = [] if "native" in INSTALLED_BACKENDS else ["test_bitwise.py"]


@pytest.fixture(params=INSTALLED_BACKENDS)
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(backend_name: str) -> Iterator[Backend]:
    """A backend with two threads, whose process-wide settings hold for the test."""
    backend = make_backend(backend_name, num_threads=2)
    with backend.running():
        yield backend
    backend.close()
