"""Flags come from the fields of EngineConfig."""

from __future__ import annotations

import msgspec
import pytest

from headrace.cli import main
from headrace.cli.flags import config_parser, describe, flag_name, parse_config, parse_size
from headrace.config.engine_config import EngineConfig


def parse(*argv: str) -> EngineConfig:
    return parse_config(config_parser("test", ""), argv)[0]


def test_nothing_given_is_the_default():
    assert parse() == EngineConfig()


def test_every_field_has_a_flag_and_a_description():
    text = config_parser("test", "").format_help()
    for field in msgspec.structs.fields(EngineConfig):
        assert describe(field)[0].endswith("."), field.name
        assert field.name == "model" or flag_name(field.name) in text


def test_values():
    settings = parse(
        "m.gguf", "--port", "8123", "--no-enable-prefix-caching", "--kv-cache-memory", "512M", "--shutdown-timeout", "2"
    )
    assert settings == EngineConfig(
        model="m.gguf", port=8123, enable_prefix_caching=False, kv_cache_memory=512 * 2**20, shutdown_timeout=2.0
    )


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--max-num-seqs", "0"], "--max-num-seqs"),
        (["--port", "70000"], "--port"),
        (["--prefill-tokens-per-request", "-1"], "--prefill-tokens-per-request"),
        (["--num-threads", "-1"], "--num-threads"),
        (["--kv-cache-memory", "4Q"], "'4Q' is no size"),
        (["--load-format", "pickle"], "--load-format"),
        (["--served-model-name", "one", ""], "--served-model-name"),
        (["--max-num", "4"], "unrecognized"),  # no abbreviations: a new flag must not change what an old command means
    ],
)
def test_a_wrong_value_names_its_flag(argv, words, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(*argv)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_config_file_has_the_flags_names_and_flags_go_before_it(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("model: m.gguf\nport: 8123\nmax-num-seqs: 4\nkv_cache_memory: 512M\nserved-model-name: one\n")
    expected = EngineConfig(
        model="m.gguf", port=9000, max_num_seqs=4, kv_cache_memory=512 * 2**20, served_model_name=("one",)
    )
    assert parse("--config", str(file), "--port", "9000") == expected
    assert parse("other.gguf", "--config", str(file)).model == "other.gguf"
    file.write_text("")
    assert parse("--config", str(file)) == EngineConfig()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot: 1", "'prot', which there is not"),
        ("port: many", "--port"),
        ("port: 70000", "--port"),
        ("kv_cache_memory: 4Q", "'4Q' is no size"),
        ("- port", "must hold settings"),
        ("max-num-seqs: 4\nmax_num_seqs: 5", "'max_num_seqs' twice"),
        ("port: [", "cannot be read"),
        ("model: !!python/object/apply:os.system [true]", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_config_file_that_is_wrong(tmp_path, capsys, text, words):
    file = tmp_path / "settings.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit) as ended:
        parse("--config", str(file))
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1000), ("512M", 512 * 2**20), ("4g", 4 * 2**30), ("1.5GiB", 3 * 2**29), ("2 KB", 2048)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


def test_commands(capsys):
    assert main([]) == 2
    assert "headrace COMMAND" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "serve" in capsys.readouterr().out
    assert main(["no-such-command"]) == 2
    assert main(["--version"]) == 0


def test_plan_of_the_demo_model(capsys):
    assert main(["plan", "--max-model-len", "1024"]) == 0
    plan = capsys.readouterr().out
    assert "KV" in plan
    assert "1024" in plan.replace(",", "")


def test_plan_of_a_model_that_is_not_there(capsys):
    assert main(["plan", "/nowhere.gguf"]) == 1
    assert "nowhere" in capsys.readouterr().err
