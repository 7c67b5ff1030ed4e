"""Flags made from the fields of `EngineConfig`: the name, the type, the default and the help are the field's."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.config.engine_config import EngineConfig
from headrace.errors import ConfigError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_SIZE_FIELDS = ("kv_cache_memory",)
_LIST_FIELDS = ("served_model_name", "api_key")  # in a file, one alone needs no list
_NOT_FLAGS = ("model",)  # the positional argument

# Fields that only a server has a use for.
SERVER_FIELDS = (
    "host",
    "port",
    "allow_unauthenticated",
    "shutdown_timeout",
    "ipc_transport",
    "served_model_name",
    "api_key",
    "max_queued_requests",
    "client_timeout",
    "output_chunk_size",
)


def config_parser(
    prog: str, description: str, *, without: Collection[str] = (), parents: Sequence[argparse.ArgumentParser] = ()
) -> argparse.ArgumentParser:
    """A parser for `[MODEL] --flag ...` over all fields but those in `without`, and what `parents` have."""
    parser = argparse.ArgumentParser(prog=prog, description=description, allow_abbrev=False, parents=parents)
    fields = {field.name: field for field in msgspec.structs.fields(EngineConfig)}
    parser.add_argument("model", nargs="?", default="", metavar="MODEL", help=describe(fields["model"])[0])
    for name, field in fields.items():
        if name not in without and name not in _NOT_FLAGS:
            _add_flag(parser, name, field)
    parser.add_argument(
        "--config", metavar="FILE", help="A YAML file with settings, named as the flags are; flags go before it."
    )
    return parser


def parse_config(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[EngineConfig, argparse.Namespace]:
    """The settings and the rest. A value out of its bounds ends the program with the flag's name, as argparse does."""
    args = parser.parse_args(argv)
    if args.config is not None:
        try:
            parser.set_defaults(**read_config_file(Path(args.config), known=vars(args).keys() - {"config"}))
        except ConfigError as error:
            parser.error(error.message)
        args = parser.parse_args(argv)
    names = {field.name for field in msgspec.structs.fields(EngineConfig)}
    given = {name: value for name, value in vars(args).items() if name in names}
    try:
        return msgspec.convert(given, EngineConfig), args
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        name = path.rstrip("`")
        parser.error(f"argument {flag_name(name)}: {message}" if name else message)
    except ConfigError as error:
        parser.error(error.message)


def flag_name(field_name: str) -> str:
    return "--" + field_name.replace("_", "-")


def describe(field: msgspec.structs.FieldInfo) -> tuple[str, Any]:
    """A field's description and its plain type, with `None` taken out of a union."""
    kind = msgspec.inspect.type_info(field.type)
    text = ""
    if isinstance(kind, msgspec.inspect.Metadata):
        text = (kind.extra_json_schema or {}).get("description", "")
        kind = kind.type
    if isinstance(kind, msgspec.inspect.UnionType):
        (kind,) = [t for t in kind.types if not isinstance(t, msgspec.inspect.NoneType)]
    return text, kind


def _add_flag(parser: argparse.ArgumentParser, name: str, field: msgspec.structs.FieldInfo) -> None:
    text, kind = describe(field)
    if field.default not in (None, "", ()):
        text += f" Default: {field.default}."
    options: dict[str, Any] = {"dest": name, "default": field.default, "help": text.replace("%", "%%")}
    if isinstance(kind, msgspec.inspect.BoolType):
        options["action"] = argparse.BooleanOptionalAction
    elif isinstance(kind, msgspec.inspect.LiteralType):
        options["choices"] = kind.values
    elif isinstance(kind, msgspec.inspect.VarTupleType):
        options |= {"nargs": "+", "metavar": name.rpartition("_")[2].upper()}
    elif name in _SIZE_FIELDS:
        options |= {"type": parse_size, "metavar": "SIZE"}
    elif isinstance(kind, msgspec.inspect.IntType):
        options |= {"type": int, "metavar": "N"}
    elif isinstance(kind, msgspec.inspect.FloatType):
        options |= {"type": float, "metavar": "X"}
    else:
        options["metavar"] = name.rpartition("_")[2].upper()
    parser.add_argument(flag_name(name), **options)


def read_config_file(path: Path, known: Collection[str]) -> dict[str, Any]:
    """Settings by field name. Dashes and underscores are the same. Raises `ConfigError` for what is not in `known`."""
    import yaml

    try:
        settings = yaml.safe_load(path.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", flag="--config") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} must hold settings, such as `port: 8123`", flag="--config")
    found: dict[str, Any] = {}
    for key, given in settings.items():
        name, value = _setting(path, key, given, known)
        if name in found:
            raise ConfigError(f"{path} has the setting {str(key)!r} twice, with dashes and without", flag="--config")
        found[name] = value
    return found


def _setting(path: Path, key: object, value: Any, known: Collection[str]) -> tuple[str, Any]:
    name = str(key).replace("-", "_")
    if name not in known:
        raise ConfigError(f"{path} has the setting {str(key)!r}, which there is not", flag="--config")
    if name in _SIZE_FIELDS and isinstance(value, str):
        try:
            value = parse_size(value)
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"{path}: {key}: {error}", flag="--config") from None
    if name in _LIST_FIELDS and isinstance(value, str):
        value = [value]
    return name, value


def parse_size(text: str) -> int:
    """`512M`, `4G`, `1.5GiB`, `1000000` to bytes (K, M, G, T are powers of 1024)."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 512M or 4G")
    number, unit = match.groups()
    return int(float(number) * 1024 ** " KMGT".index(unit.upper() or " "))
