"""`headrace chat [MODEL]`: talk with a model in the terminal, without a server.

Ctrl-C stops an answer, and what there is of it stays in the history. Where standard input is no terminal, each of its
lines is a message, and nothing but the answers goes to standard output.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.cli.flags import SERVER_FIELDS, config_parser, parse_config
from headrace.cli.sampling import add_sampling_flags, sampling_params
from headrace.contracts.sampling_params import OutputKind, SamplingParams
from headrace.errors import ContextLengthError, EngineDeadError, HeadraceError, RequestError
from headrace.frontend.interrupts import held_interrupts

if TYPE_CHECKING:  # loaded when the flags are known to be right
    from headrace.frontend.chat_prompt import ChatPrompt
    from headrace.frontend.llm_engine import LLMEngine

PROMPT = "> "
REQUEST_ID = "answer"  # one at a time
WAY_OUT = "/undo takes back the last question and its answer, /clear begins anew."

# What a terminal could take for an order, which a model has no business to give.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Chat:
    """A conversation: what was said so far, and how answers are sampled."""

    def __init__(self, engine: LLMEngine, params: SamplingParams, system: str | None) -> None:
        self._engine = engine
        self._params = msgspec.structs.replace(params, output_kind=OutputKind.DELTA)
        self.system = system
        self.messages: list[dict[str, str]] = []

    def check(self) -> None:
        """Raises the `RequestError` that a first message would meet: a parameter out of its bounds, a model without a
        chat template, a template without a system prompt."""
        self._engine.prepare(REQUEST_ID, self._prompt({"role": "user", "content": "Hello"}), self._params)

    def ask(self, question: str, write: Callable[[str], None]) -> str | None:
        """Stream an answer into `write`. Returns why it ended early, None if it did not.

        Raises a `RequestError` if there is no answer; the question is not in the history then."""
        message = {"role": "user", "content": question}
        answer, ending = "", None
        with held_interrupts(second_breaks_off=False) as interrupted:
            self._engine.add_request(REQUEST_ID, self._prompt(message), self._params)
            try:
                while self._engine.has_unfinished_requests() and not interrupted():
                    for output in self._engine.step():
                        if output.error is not None:
                            raise output.error
                        (choice,) = output.outputs
                        answer += choice.text
                        write(choice.text)
                        ending = choice.finish_reason
            finally:
                self._engine.abort_request(REQUEST_ID)
        if answer or ending == "stop":
            self.messages += [message, {"role": "assistant", "content": answer}]
        if ending is None:
            return "stopped" if answer else "stopped; the question is not in the history"
        if ending == "length" and self._params.max_tokens is None:
            return f"the context is full. {WAY_OUT}"
        return "cut at --max-tokens" if ending == "length" else None

    def undo(self) -> str:
        if not self.messages:
            return "there is nothing to take back"
        question = self.messages[-2]["content"]
        del self.messages[-2:]
        return f"taken back: {question}"

    def _prompt(self, message: dict[str, str]) -> ChatPrompt:
        from headrace.frontend.chat_prompt import ChatPrompt

        system = [{"role": "system", "content": self.system}] if self.system else []
        return ChatPrompt([*system, *self.messages, message])


# ---- commands -------------------------------------------------------------------------------------------------------


def show_help(chat: Chat, rest: str) -> str:
    lines = [f"/{name:7} {what}" for name, (what, _) in COMMANDS.items()]
    return "\n".join([*lines, "//...     a message that begins with a slash", "Ctrl-C    stop the answer"])


def clear(chat: Chat, rest: str) -> str:
    chat.messages.clear()
    return "the history is empty"


def set_system(chat: Chat, rest: str) -> str:
    if not rest:
        return f"system prompt: {chat.system}" if chat.system else "there is no system prompt; /system TEXT sets one"
    chat.system = rest
    return "the system prompt is set"


def undo(chat: Chat, rest: str) -> str:
    return chat.undo()


def leave(chat: Chat, rest: str) -> str:
    raise EOFError


COMMANDS: dict[str, tuple[str, Callable[[Chat, str], str]]] = {
    "help": ("this list", show_help),
    "clear": ("forget the conversation, but not the system prompt", clear),
    "system": ("show the system prompt, or set it: /system You are a poet.", set_system),
    "undo": ("take back the last question and its answer", undo),
    "exit": ("leave, as Ctrl-D does", leave),
}


def obey(chat: Chat, line: str) -> str:
    """Run a command; what there is to say about it."""
    name, _, rest = line[1:].partition(" ")
    if name not in COMMANDS:
        return f"there is no command /{name}; /help lists them"
    return COMMANDS[name][1](chat, rest.strip())


# ---- the terminal ---------------------------------------------------------------------------------------------------


def read_lines() -> Iterator[str]:
    """What the user types, line by line, until Ctrl-D, or Ctrl-C where nothing is typed."""
    if not sys.stdin.isatty():
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    try:
        import readline  # `input` edits lines with it, and keeps a history

        typed = readline.get_line_buffer
    except ImportError:
        typed = str  # nothing, as far as anybody knows
    while True:
        try:
            yield input(PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            if not typed():
                return


def write(text: str) -> None:
    """To the user, at once."""
    if sys.stdout.isatty():
        text = _CONTROLS.sub("\ufffd", text)
    sys.stdout.write(text)
    sys.stdout.flush()


def say(text: str) -> None:
    """About the conversation, and no part of it."""
    print(f"({text})" if "\n" not in text else text, file=sys.stderr, flush=True)


def talk(chat: Chat) -> None:
    """Until the user leaves: ends, or raises `EOFError`. Raises `EngineDeadError`, too."""
    for raw in read_lines():
        line = raw.encode(errors="replace").decode().strip()
        with contextlib.suppress(KeyboardInterrupt):  # of one who pressed Ctrl-C when the answer was just over
            if line.startswith("/") and not line.startswith("//"):
                say(obey(chat, line))
            elif line:
                answer(chat, line.removeprefix("/"))


def answer(chat: Chat, question: str) -> None:
    try:
        ending = chat.ask(question, write)
        write("\n")
    except EngineDeadError:
        raise
    except ContextLengthError as error:
        say(f"{error.message} {WAY_OUT}")
    except RequestError as error:
        say(error.message)
    else:
        if ending is not None:
            say(ending)


def run(argv: Sequence[str]) -> int:
    parser = config_parser("headrace chat", "Talk with a model in the terminal.", without=SERVER_FIELDS)
    parser.add_argument("--system", metavar="TEXT", help="A system prompt. Default: none, or the chat template's own.")
    add_sampling_flags(parser, None)
    settings, args = parse_config(parser, argv)
    from headrace.frontend.llm_engine import LLMEngine

    try:
        engine = LLMEngine(config=settings)
        chat = Chat(engine, sampling_params(args, engine.default_sampling_params), args.system)
        chat.check()
        if sys.stdin.isatty():
            say("/help lists the commands, Ctrl-D leaves")
        with contextlib.suppress(EOFError):
            talk(chat)
    except HeadraceError as error:
        print(f"headrace: error: {error.message}", file=sys.stderr)
        return 1
    return 0
