from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.errors import ModelFormatError
from headrace.formats.hf_config import read_hf_config


def write(folder: Path, config: object, generation: object = None) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 2}, None, (2,)),
        ({"eos_token_id": [7, 2]}, None, (2, 7)),
        ({"eos_token_id": 2}, {"eos_token_id": [5, 2]}, (2, 5)),
        ({}, {}, ()),
        ({"eos_token_id": None}, {"eos_token_id": 3}, (3,)),
    ],
)
def test_eos_ids_are_the_union_of_both_files(
    config: object, generation: object, expected: tuple[int, ...], tmp_path: Path
) -> None:
    write(tmp_path, config, generation)
    assert read_hf_config(tmp_path).eos_token_ids == expected


@pytest.mark.parametrize("value", ["2", [2, "3"], -1, 2.5])
def test_other_eos_ids_are_refused(value: object, tmp_path: Path) -> None:
    write(tmp_path, {"eos_token_id": value})
    with pytest.raises(ModelFormatError, match="eos_token_id"):
        _ = read_hf_config(tmp_path).eos_token_ids


@pytest.mark.parametrize(("content", "reason"), [("{", "no valid JSON"), ("[]", "no JSON object"), (None, "read")])
def test_a_config_that_is_none(content: str | None, reason: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelFormatError, match=reason):
        read_hf_config(tmp_path)
