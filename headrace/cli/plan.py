"""`headrace plan [MODEL]`: the memory plan, from the model's header alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from headrace.cli.flags import SERVER_FIELDS, config_parser, parse_config
from headrace.config.resolve import resolve
from headrace.errors import StartupError


def run(argv: Sequence[str]) -> int:
    parser = config_parser(
        "headrace plan", "Where the memory would go. Loads no weights and allocates nothing.", without=SERVER_FIELDS
    )
    settings, _ = parse_config(parser, argv)
    try:
        config = resolve(settings)
        from headrace.worker.memory import plan_memory

        print(plan_memory(config).render())
    except StartupError as error:
        print(f"headrace: error: {error.message}", file=sys.stderr)
        return 1
    return 0
