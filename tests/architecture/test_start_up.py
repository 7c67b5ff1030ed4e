"""What is loaded in a fresh interpreter: memory and seconds to the first token depend on it."""

import json
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import headrace
from headrace.config.resolve import NATIVE_KERNELS
from tests.architecture.import_table import ANY, configured_lines, parse

HEAVY = {"numpy", "torch", "transformers", "tokenizers", "starlette", "uvicorn", "zmq", "asyncio"}
TEXT = {"tokenizers", "jinja2", "starlette", "uvicorn"}
TABLE = parse(configured_lines(Path(__file__).parents[2]))

IMPORT_AND_LIST = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted(sys.modules)))
"""


def loaded_by(repository: Path, *modules: str) -> set[str]:
    """The names in sys.modules after a fresh interpreter has imported these modules."""
    command = [sys.executable, "-c", IMPORT_AND_LIST, *modules]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def modules_of(repository: Path, folder: str) -> list[str]:
    """Every module of a folder, except the backend that needs torch, and the native one where it was not built."""
    path = repository / "headrace" / folder
    files = [path.with_suffix(".py")] if path.with_suffix(".py").is_file() else sorted(path.rglob("*.py"))
    names = [f.relative_to(repository).with_suffix("").as_posix().replace("/", ".") for f in files]
    absent = ("headrace.backends.torch",) + (() if find_spec(NATIVE_KERNELS) else ("headrace.backends.native",))
    return [n.removesuffix(".__init__") for n in names if not n.startswith(absent)]


def reachable(folder: str) -> set[str]:
    """The folders that a folder may load, itself or through what it imports."""
    seen, todo = set(), [folder]
    while todo:
        if (name := todo.pop().split(".")[0]) not in seen:
            seen.add(name)
            todo += TABLE[name] or ()
    return seen


def test_public_names_are_lazy(repository: Path) -> None:
    loaded = loaded_by(repository, "headrace")
    assert loaded & HEAVY == set()
    assert {name for name in loaded if name.startswith("headrace.")} == set()


def test_public_names_exist() -> None:
    assert {"LLM", "LLMEngine", "AsyncLLM", "SamplingParams", "EngineConfig", "RequestOutput"} <= set(headrace.__all__)
    for name in headrace.__all__:
        assert getattr(headrace, name).__name__ == name


def test_version_is_the_project_version(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    assert headrace.__version__ == project["version"]


def test_launcher_stays_small(repository: Path) -> None:
    assert loaded_by(repository, "headrace.launch") & (HEAVY - {"asyncio"}) == set()


def test_the_api_server_loads_neither_arrays_nor_models_of_routes(repository: Path) -> None:
    """ADR 0004: the latter took longer than everything else that it imports."""
    assert loaded_by(repository, "headrace.frontend.api_server") & {"numpy", "fastapi", "pydantic"} == set()


@pytest.mark.parametrize("folder", [name for name, allowed in TABLE.items() if allowed is not ANY])
def test_a_folder_loads_only_what_it_may(repository: Path, folder: str) -> None:
    modules = modules_of(repository, folder)
    assert modules
    loaded = loaded_by(repository, *modules)
    ours = {name.split(".")[1] for name in loaded if name.startswith("headrace.")}
    assert ours <= reachable(folder)
    assert loaded & {"torch", "transformers"} == set()
    if folder in {"core", "worker", "model", "backends"}:
        assert loaded & TEXT == set(), "text exists only in the front end"
