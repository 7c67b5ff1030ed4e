"""The conversation of `headrace chat`, over an engine in memory that answers with the prompt's own tokens."""

from __future__ import annotations

import signal

import pytest

from headrace.cli import main
from headrace.cli.chat import WAY_OUT, Chat, obey, talk
from headrace.cli.sampling import add_sampling_flags, sampling_params
from headrace.config.engine_config import EngineConfig
from headrace.config.resolve import resolve
from headrace.contracts.engine import EngineCoreOutputs
from headrace.contracts.sampling_params import SamplingParams
from headrace.errors import ContextLengthError, InvalidParameterError
from headrace.frontend.input_processor import InputProcessor
from headrace.frontend.llm_engine import LLMEngine
from tests.unit.frontend.test_llm import EchoEngine


@pytest.fixture(scope="module")
def processor():
    return InputProcessor.from_config(resolve(EngineConfig(max_model_len=128)))


def make_chat(processor, core=None, system=None, **params) -> Chat:
    return Chat(LLMEngine.over(processor, core or EchoEngine()), SamplingParams(**params), system)


def ask(chat: Chat, question: str) -> tuple[str, str | None]:
    pieces: list[str] = []
    ending = chat.ask(question, pieces.append)
    return "".join(pieces), ending


def test_the_history_goes_into_the_next_prompt(processor):
    core = EchoEngine()
    chat = make_chat(processor, core, system="Be brief.", max_tokens=4)
    answer, ending = ask(chat, "One?")
    assert ending == "cut at --max-tokens"
    assert chat.messages == [{"role": "user", "content": "One?"}, {"role": "assistant", "content": answer}]
    ask(chat, "Two?")
    prompt = processor.detokenize(core.seen[-1].prompt_token_ids)
    assert prompt.index("Be brief.") < prompt.index("One?") < prompt.index("Two?")
    assert len(chat.messages) == 4


def test_an_answer_comes_in_pieces(processor):
    pieces: list[str] = []
    make_chat(processor, max_tokens=8).ask("Hello there", pieces.append)
    assert len([piece for piece in pieces if piece]) > 1


class InterruptedEngine(EchoEngine):
    """Gets Ctrl-C, twice, while it works on the token of this place."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.steps_until = place

    def get_output(self) -> EngineCoreOutputs:
        self.steps_until -= 1
        if self.steps_until == -1:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return super().get_output()


def test_ctrl_c_keeps_what_there_is_of_the_answer(processor):
    core = InterruptedEngine(place=5)
    chat = make_chat(processor, core)
    answer, ending = ask(chat, "Hello")
    assert ending == "stopped"
    assert answer
    assert chat.messages[-1] == {"role": "assistant", "content": answer}
    assert not core.running
    assert ask(chat, "And now?")[0]
    assert len(chat.messages) == 4


def test_ctrl_c_before_the_first_text_takes_the_question_back(processor):
    chat = make_chat(processor, InterruptedEngine(place=0))
    assert ask(chat, "Hello") == ("", "stopped; the question is not in the history")
    assert chat.messages == []


def test_a_full_context_is_told_and_the_history_stays(processor):
    chat = make_chat(processor)
    _, ending = ask(chat, "word " * 60)
    assert ending == f"the context is full. {WAY_OUT}"
    before = list(chat.messages)
    with pytest.raises(ContextLengthError, match="128 tokens"):
        ask(chat, "One more?")
    assert chat.messages == before
    obey(chat, "/undo")
    assert chat.messages == []
    assert ask(chat, "Short?")[0]


def test_commands(processor):
    chat = make_chat(processor, max_tokens=3)
    assert "nothing" in obey(chat, "/undo")
    ask(chat, "One?")
    ask(chat, "Two?")
    assert obey(chat, "/undo") == "taken back: Two?"
    assert chat.messages[0]["content"] == "One?"
    assert "no system prompt" in obey(chat, "/system")
    obey(chat, "/system  You are a poet. ")
    assert obey(chat, "/system") == "system prompt: You are a poet."
    obey(chat, "/clear")
    assert (chat.messages, chat.system) == ([], "You are a poet.")
    assert "/nonsense; /help" in obey(chat, "/nonsense now")
    assert all(f"/{name}" in obey(chat, "/help") for name in ("help", "clear", "system", "undo", "exit"))
    with pytest.raises(EOFError):
        obey(chat, "/exit")


def test_lines_of_a_pipe_are_messages(processor, monkeypatch, tmp_path, capsys):
    script = tmp_path / "script"
    script.write_bytes(b"One?\n\n//etc is a folder\n/system Be brief.\n\xff\n")
    chat = make_chat(processor, max_tokens=2)
    with script.open(errors="surrogateescape") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        talk(chat)
    assert [message["content"] for message in chat.messages[::2]] == ["One?", "/etc is a folder", "?"]
    out, err = capsys.readouterr()
    assert len(out.splitlines()) >= 3
    assert ">" not in out.replace("<|im", "").replace("|>", "")
    assert "the system prompt is set" in err


def test_what_a_first_message_would_meet_is_told_at_once(processor):
    make_chat(processor).check()
    with pytest.raises(InvalidParameterError, match="temperature"):
        make_chat(processor, temperature=9.0).check()


def test_flags_of_sampling_go_before_the_defaults():
    import argparse

    parser = argparse.ArgumentParser()
    add_sampling_flags(parser, SamplingParams(max_tokens=128, temperature=0.0))
    args = parser.parse_args(["--max-tokens", "7", "--sampling-seed", "3", "--repetition-penalty", "1.2"])
    params = sampling_params(args, SamplingParams(temperature=0.5, top_k=9))
    assert params == SamplingParams(temperature=0.5, top_k=9, max_tokens=7, seed=3, repetition_penalty=1.2)
    assert "Default: 128." in parser.format_help()


@pytest.mark.parametrize("command", ["chat", "generate"])
def test_a_model_that_is_not_there(command, capsys, monkeypatch):
    assert main([command, "/nowhere.gguf", *(["--prompt", "x"] if command == "generate" else [])]) == 1
    assert "nowhere" in capsys.readouterr().err
