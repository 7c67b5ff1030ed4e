"""`headrace serve [MODEL]`"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.cli.flags import config_parser, parse_config
from headrace.launch import launch


def run(argv: Sequence[str]) -> int:
    parser = config_parser("headrace serve", "Serve a model through the OpenAI API.")
    settings, _ = parse_config(parser, argv)
    return launch(settings)
