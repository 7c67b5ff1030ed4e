"""Who can reach a server, and with which keys: a module of its own, as the launcher asks first of all."""

from __future__ import annotations

import ipaddress
import os

from headrace.config.engine_config import EngineConfig
from headrace.errors import ConfigError

API_KEY_VARIABLE = "HEADRACE_API_KEY"


def check_address(config: EngineConfig) -> None:
    """Raises `ConfigError` for an address that must not be opened. The launcher asks before it opens any."""
    if not config.allow_unauthenticated and not _is_loopback(config.host) and not api_keys(config):
        raise ConfigError(
            f"other machines can reach {config.host!r}, and nothing would ask them for a key; set {API_KEY_VARIABLE}, "
            "or add --allow-unauthenticated if that is meant",
            flag="--host",
        )


def api_keys(config: EngineConfig) -> tuple[str, ...]:
    """Those of the flag and those of the environment, which are separated by spaces. Raises `ConfigError`."""
    keys = (*config.api_key, *os.environ.get(API_KEY_VARIABLE, "").split())
    for key in keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError("a key must consist of printable ASCII characters without spaces", flag="--api-key")
    return keys


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
