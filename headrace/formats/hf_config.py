"""config.json and generation_config.json of a Hugging Face folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ModelFormatError
from headrace.formats.json_file import read_json_object

CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"


@dataclass(frozen=True)
class HFConfig:
    """The two files as they are. `generation` is empty where the folder has no generation_config.json."""

    path: Path  # of config.json, for messages
    config: dict[str, object]
    generation: dict[str, object]

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that either file calls an end of sequence, in ascending order."""
        return tuple(sorted({*self._ids(self.config), *self._ids(self.generation)}))

    def _ids(self, source: dict[str, object]) -> list[int]:
        value = source.get("eos_token_id")
        entries = value if isinstance(value, list) else [] if value is None else [value]
        ids = [entry for entry in entries if isinstance(entry, int) and entry >= 0]
        if len(ids) != len(entries):
            raise ModelFormatError(f"{self.path.parent}: eos_token_id is {value!r}, not an id or a list of ids")
        return ids


def read_hf_config(folder: Path) -> HFConfig:
    """Read both files. Raises `ModelFormatError`; only config.json must be there."""
    path = folder / CONFIG_FILE
    generation = folder / GENERATION_CONFIG_FILE
    return HFConfig(path, read_json_object(path), read_json_object(generation) if generation.is_file() else {})
