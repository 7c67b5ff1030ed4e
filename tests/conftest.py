"""What every test may use. Fixtures of one folder live in that folder's own conftest.py."""

from pathlib import Path

import pytest

from headrace.errors import ConfigError


def pytest_report_header() -> str:
    """A run without native kernels must not look like one with them."""
    try:
        from headrace.backends.native.extension import choose_instruction_set, native

        usable = ", ".join(native.instruction_sets())
        return f"native kernels: {choose_instruction_set()} (usable here: {usable})"
    except ConfigError as error:
        return f"native kernels: none. {error.message}"


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of this checkout."""
    return Path(__file__).resolve().parents[1]
