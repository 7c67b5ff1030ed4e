"""What every test may use. Fixtures of one folder live in that folder's own conftest.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.config.cache_folder import CACHE_VARIABLE
from headrace.errors import ConfigError


def pytest_report_header() -> str:
    """A run without native kernels must not look like one with them."""
    try:
        from headrace.backends.native.extension import choose_instruction_set, native

        usable = ", ".join(native.instruction_sets())
        return f"native kernels: {choose_instruction_set()} (usable here: {usable})"
    except ConfigError as error:
        return f"native kernels: none. {error.message}"


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test reads or writes the cache of whoever runs it."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def _no_hub() -> Iterator[None]:
    """No test asks the Hugging Face hub."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of this checkout."""
    return Path(__file__).resolve().parents[1]
