"""The command line: one file for each command, loaded when it is asked for."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence

COMMANDS = {
    "serve": "an OpenAI-compatible server",
    "generate": "tokens for prompts, without a server",
    "chat": "talk with a model in the terminal",
    "plan": "where the memory would go, without loading anything",
    "bench": "measure a server, the engine without one, or its start",
    "doctor": "what this machine and this installation can do",
}


def main(argv: Sequence[str] | None = None) -> int:
    """`headrace COMMAND ...`; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--version"]:
        from headrace import __version__

        print(__version__)
        return 0
    if not words or words[0] not in COMMANDS:
        asked_for_help = words[:1] in (["-h"], ["--help"])
        print(usage(), file=sys.stdout if asked_for_help else sys.stderr)
        return 0 if asked_for_help else 2
    command = importlib.import_module(f"headrace.cli.{words[0]}")
    try:
        status: int = command.run(words[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # nobody reads the answers any more, as behind `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python says so once more when it ends
        return 128 + signal.SIGPIPE
    return status


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name.ljust(width)}  {what}" for name, what in COMMANDS.items()]
    return "\n".join(["usage: headrace COMMAND ...", "", *lines, "", "headrace COMMAND --help tells its flags."])
