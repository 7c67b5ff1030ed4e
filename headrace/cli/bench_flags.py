"""Flags of `headrace bench`: those that several of its commands have, and how their values are read."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # loaded when the flags are known to be right
    from headrace.bench.workload import RandomLengths

LATENCIES = ("ttft", "tpot", "itl", "e2el")
GOODPUT = ("ttft", "tpot", "e2el")

Number = TypeVar("Number", int, float)
Flags = argparse.ArgumentParser | argparse._ArgumentGroup


def add_random_flags(parser: Flags, *, input_len: int, output_len: int, prefix: str, alias: str | None = None) -> None:
    """`alias` is another prefix for the two flags that everybody needs."""

    def names(name: str) -> list[str]:
        return [prefix + name] if alias is None else [alias + name, prefix + name]

    parser.add_argument(
        *names("input-len"),
        dest="random_input_len",
        type=count,
        default=input_len,
        metavar="N",
        help=f"Tokens of a random prompt, after the prefix. Default: {input_len}.",
    )
    parser.add_argument(
        *names("output-len"),
        dest="random_output_len",
        type=count,
        default=output_len,
        metavar="N",
        help=f"Tokens of its answer. Default: {output_len}.",
    )
    parser.add_argument(
        f"{prefix}prefix-len",
        type=zero_or_more,
        default=0,
        metavar="N",
        help="Tokens with which all random prompts begin, for the prefix cache to find. Default: 0.",
    )
    parser.add_argument(
        f"{prefix}range-ratio",
        type=share,
        default=0.0,
        metavar="X",
        help="Lengths are drawn from LEN * (1 - X) to LEN * (1 + X). Default: 0.",
    )
    parser.add_argument(
        "--token-ids",
        type=id_range,
        default=(1000, 30000),
        metavar="LOW:HIGH",
        help="Token ids of random prompts, HIGH excluded. Default: 1000:30000.",
    )


def random_lengths(args: argparse.Namespace, prefix: str) -> RandomLengths:
    from headrace.bench.workload import RandomLengths

    names = ("input_len", "output_len", "prefix_len", "range_ratio")
    return RandomLengths(**{name: getattr(args, prefix + name) for name in names})


def add_report_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--percentile-metrics",
        type=latency_names,
        default=LATENCIES,
        metavar="NAMES",
        help="Of which latencies, with commas: ttft,tpot,itl,e2el. Default: all four.",
    )
    parser.add_argument(
        "--metric-percentiles",
        type=percentile_list,
        default=(50.0, 90.0, 99.0),
        metavar="NUMBERS",
        help="Which percentiles, with commas. Default: 50,90,99.",
    )
    parser.add_argument(
        "--save-detailed", action="store_true", help="Put every request's times into the JSON file, too."
    )
    add_file_flags(parser)


def add_file_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="Write everything as JSON, too.")
    parser.add_argument("--save-result", action="store_true", help="The same, with a name of its own in --result-dir.")
    parser.add_argument("--result-dir", type=Path, default=Path(), metavar="FOLDER", help="Default: where you are.")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="Draw a PNG; needs the extra headrace[bench].")


# ---- values ----------------------------------------------------------------------------------------------------------


def count(text: str) -> int:
    return _bounded(int, text, "a whole number from 1", lambda value: value >= 1)


def zero_or_more(text: str) -> int:
    return _bounded(int, text, "a whole number from 0", lambda value: value >= 0)


def positive(text: str) -> float:
    return _bounded(float, text, "a number above 0", lambda value: 0 < value < math.inf)


def positive_or_inf(text: str) -> float:
    return _bounded(float, text, "a number above 0, or inf", lambda value: value > 0)


def not_negative(text: str) -> float:
    return _bounded(float, text, "a number from 0", lambda value: 0 <= value < math.inf)


def share(text: str) -> float:
    return _bounded(float, text, "a number from 0, and below 1", lambda value: 0 <= value < 1)


def _bounded(kind: Callable[[str], Number], text: str, right: str, is_right: Callable[[Number], bool]) -> Number:
    try:
        value = kind(text)
        if is_right(value):
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} must be {right}")


def id_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    if not (low.isdecimal() and high.isdecimal() and int(low) < int(high)):
        raise argparse.ArgumentTypeError(f"{text!r} must be LOW:HIGH, such as 1000:30000")
    return int(low), int(high)


def latency_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in LATENCIES]:
        raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}; there are {','.join(LATENCIES)}")
    return names


def percentile_list(text: str) -> tuple[float, ...]:
    try:
        values = tuple(map(float, text.split(",")))
    except ValueError:
        values = ()
    if not values or not all(0 <= value <= 100 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} must be numbers from 0 to 100, such as 50,90,99")
    return values


def goal(text: str) -> tuple[str, float]:
    name, _, limit = text.partition(":")
    if name not in GOODPUT:
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME:MILLISECONDS with one of {', '.join(GOODPUT)}")
    return name, positive(limit)


def json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError('it must be a JSON object, such as {"top_p": 0.9}')
    return value
