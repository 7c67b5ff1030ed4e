"""Every implementation in one list: a new one joins the suite by being named there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.model.ops import Backend
from tests.conformance.implementations import IMPLEMENTATIONS, Implementation
from tests.installed_backends import INSTALLED_BACKENDS

collect_ignore = [] if "native" in INSTALLED_BACKENDS else ["test_bitwise.py", "test_few_bits.py", "test_progress.py"]


@pytest.fixture(params=IMPLEMENTATIONS, ids=str)
def implementation(request: pytest.FixtureRequest) -> Implementation:
    found: Implementation = request.param
    return found


@pytest.fixture
def backend(implementation: Implementation) -> Iterator[Backend]:
    """A backend with two threads, whose process-wide settings hold for the test."""
    backend = implementation.make(num_threads=2)
    with backend.running():
        yield backend
    backend.close()
