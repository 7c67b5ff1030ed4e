"""The import-linter contract behind "who may import whom": the table in pyproject.toml, read as it stands there.

import-linter's own "forbidden" contract names what is not allowed and refuses modules that do not exist yet. Ours names
what is allowed, so that a new folder starts with no rights. Only direct imports count: what a folder may import answers
for itself on a line of its own. Imports under TYPE_CHECKING count too.
"""

import tomllib
from pathlib import Path

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

Rights = dict[str, frozenset[str] | None]  # folder -> what it may import, without our package's name; None: anything
ANY = None


def configured_lines(repository: Path) -> list[str]:
    tool = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = tool["contracts"]
    return contract["may_import"]


def parse(lines: list[str]) -> Rights:
    rights: Rights = {}
    for line in lines:
        folder, separator, allowed = line.partition(":")
        if not separator or not allowed.strip():
            raise fields.ValidationError(f"{line!r}: write 'folder: what it may import', or nothing, or any")
        words = allowed.split()
        rights[folder.strip()] = ANY if words == ["any"] else frozenset(words) - {"nothing"}
    return rights


def folder_of(module: str) -> str | None:
    """`headrace.core.sched.scheduler` -> `core`; None for `headrace` itself."""
    return module.split(".")[1] if "." in module else None


def may_import(rights: Rights, importer: str, imported: str) -> bool:
    source, target = folder_of(importer), folder_of(imported)
    # The root package is imported before anything in it, so `from headrace import __version__` adds nothing. What it
    # imports itself, it imports lazily: a test of its own starts an interpreter and looks.
    if source is None or source == "__main__" or target is None or source == target:
        return True
    allowed = rights.get(source, frozenset())
    if allowed is ANY:
        return True
    inside = imported.split(".", 1)[1]
    return any(inside == name or inside.startswith(name + ".") for name in allowed)


class RightsField(fields.Field):
    def parse(self, raw_data: str | list[str]) -> Rights:
        return parse([raw_data] if isinstance(raw_data, str) else raw_data)


class ImportTable(Contract):
    type_name = "import_table"

    may_import = RightsField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        rights = self.may_import
        modules = sorted(module for module in graph.modules if module.split(".")[0] == "headrace")
        unlisted = sorted({f for f in map(folder_of, modules) if f not in (None, "__main__")} - rights.keys())
        broken = []
        for importer in modules:
            for imported in sorted(graph.find_modules_directly_imported_by(importer)):
                if not may_import(rights, importer, imported):
                    lines = [d["line_number"] for d in graph.get_import_details(importer=importer, imported=imported)]
                    broken.append((importer, imported, lines))
        return ContractCheck(kept=not unlisted and not broken, metadata={"unlisted": unlisted, "broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for folder in check.metadata["unlisted"]:
            output.print_error(f"headrace.{folder} has no line in the table (pyproject.toml, may_import).")
        for importer, imported, lines in check.metadata["broken"]:
            places = ", ".join(f"l.{line}" for line in lines)
            output.print_error(f"{importer} is not allowed to import {imported} ({places}).", bold=False)
