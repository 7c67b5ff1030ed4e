"""Flags for sampling parameters, of the commands that generate without a server."""

from __future__ import annotations

import argparse

import msgspec

from headrace.contracts.sampling_params import SamplingParams

# Field of SamplingParams -> its flag, type, metavar and what it says.
_FLAGS: dict[str, tuple[str, type, str, str]] = {
    "max_tokens": ("--max-tokens", int, "N", "Most tokens of an answer."),
    "temperature": ("--temperature", float, "X", "0 is greedy."),
    "top_p": ("--top-p", float, "X", "Nucleus of probability."),
    "top_k": ("--top-k", int, "N", "Most probable tokens; 0 is all."),
    "min_p": ("--min-p", float, "X", "Least probability, relative to the most probable token's."),
    "repetition_penalty": ("--repetition-penalty", float, "X", "Above 1, tokens that were there are less probable."),
    "seed": ("--sampling-seed", int, "N", "Seed of the sampling."),
}
_DRAWN = "drawn"  # of a seed


def add_sampling_flags(parser: argparse.ArgumentParser, defaults: SamplingParams | None) -> None:
    """`defaults` are for the help; None: the model's own."""
    for field, (flag, kind, metavar, text) in _FLAGS.items():
        value = getattr(defaults, field, None)
        if field == "seed":
            default = _DRAWN
        elif value is not None:
            default = f"{value:g}"
        else:
            default = "what the context leaves" if field == "max_tokens" else "what the model's makers recommend"
        parser.add_argument(flag, type=kind, metavar=metavar, help=f"{text} Default: {default}.")


def sampling_params(args: argparse.Namespace, defaults: SamplingParams) -> SamplingParams:
    """What was said, and `defaults` for the rest."""
    given = {field: getattr(args, flag[2:].replace("-", "_")) for field, (flag, *_) in _FLAGS.items()}
    return msgspec.structs.replace(defaults, **{field: value for field, value in given.items() if value is not None})
