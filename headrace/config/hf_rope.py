"""RopeFacts from config.json: `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before).

Defaults are transformers' (modeling_rope_utils.py). A setting that its type does not have is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from headrace.config.model_facts import LinearScaling, Llama3Scaling, RopeFacts, YarnScaling
from headrace.errors import ModelFormatError, UnsupportedModelError

T = TypeVar("T", float, None)

_SETTINGS: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset({
        "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "truncate",
    }),
}  # fmt: skip
_NEUTRAL_VALUES: Mapping[str, object] = {"partial_rotary_factor": 1.0}


def read_rope(config: Mapping[str, object], path: object, head_dim: int) -> RopeFacts:
    """`path` is named in messages. Raises `ModelFormatError` or `UnsupportedModelError`."""
    settings: dict[str, object] = {"rope_theta": config.get("rope_theta", 10000.0)}
    for group in ("rope_scaling", "rope_parameters"):
        parameters = config.get(group)
        if parameters is None:
            continue
        if not isinstance(parameters, dict):
            raise ModelFormatError(f"{path}: {group} is {parameters!r}, not an object")
        _refuse_unknown(parameters, group, path)
        settings |= parameters
    return _Reader(config, settings, path).facts(head_dim)


def _type_of(settings: Mapping[str, object]) -> object:
    return settings.get("rope_type", settings.get("type", "default"))


def _refuse_unknown(parameters: Mapping[str, object], group: str, path: object) -> None:
    word = _type_of(parameters)
    if not isinstance(word, str) or word not in _SETTINGS:
        raise UnsupportedModelError(
            f"{path}: {group}.rope_type = {word!r} is not supported; supported: {', '.join(_SETTINGS)}"
        )
    for setting, value in parameters.items():
        is_known = setting in _SETTINGS[word] or setting in ("rope_type", "type", "rope_theta")
        if not is_known and (setting not in _NEUTRAL_VALUES or value != _NEUTRAL_VALUES[setting]):
            raise UnsupportedModelError(f"{path}: {group}.{setting} = {value!r} is not supported for {word!r}")


class _Reader:
    def __init__(self, config: Mapping[str, object], settings: Mapping[str, object], path: object) -> None:
        self.config = config
        self.settings = settings
        self.path = path

    def facts(self, head_dim: int) -> RopeFacts:
        return RopeFacts(base=self.number("rope_theta"), dim=head_dim, scaling=self.scaling())

    def scaling(self) -> LinearScaling | Llama3Scaling | YarnScaling | None:
        match _type_of(self.settings):
            case "linear":
                return LinearScaling(self.number("factor"))
            case "llama3":
                return self.llama3()
            case "yarn":
                return self.yarn()
        return None

    def llama3(self) -> Llama3Scaling:
        scaling = Llama3Scaling(
            factor=self.number("factor"),
            low_freq_factor=self.number("low_freq_factor"),
            high_freq_factor=self.number("high_freq_factor"),
            original_max_position_embeddings=self.original_length(),
        )
        if scaling.low_freq_factor >= scaling.high_freq_factor:
            raise ModelFormatError(f"{self.path}: low_freq_factor is not below high_freq_factor")
        return scaling

    def yarn(self) -> YarnScaling:
        return YarnScaling(
            factor=self.number("factor"),
            original_max_position_embeddings=self.original_length(),
            beta_fast=self.number_or("beta_fast", 32.0),
            beta_slow=self.number_or("beta_slow", 1.0),
            truncate=self.settings.get("truncate", True) is not False,
            attention_factor=self.number_or("attention_factor", None),
            mscale=self.number_or("mscale", None),
            mscale_all_dim=self.number_or("mscale_all_dim", None),
        )

    def original_length(self) -> int:
        """Beside the rope's settings it counts for more than among them, as in transformers."""
        setting = "original_max_position_embeddings"
        inside = self.settings.get(setting, self.config.get("max_position_embeddings"))
        value = self.config.get(setting, inside)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise ModelFormatError(f"{self.path}: {setting} is {value!r}, not a positive integer")
        return value

    def number(self, setting: str) -> float:
        value = self.settings.get(setting)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise ModelFormatError(f"{self.path}: {setting} of the rope is {value!r}, not a positive number")
        return float(value)

    def number_or(self, setting: str, default: T) -> float | T:
        """null and 0 mean the default too."""
        return self.number(setting) if self.settings.get(setting) else default
