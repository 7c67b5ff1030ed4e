"""Requests made from the server's own /openapi.json, by schemathesis: lawful ones must be answered, others refused.

    python -m tests.system.fuzzing --examples 2000

For each route: what breaks and keeps each bound once (schemathesis' coverage), then random requests that keep the
document and random ones that break it. Every answer must be one that the document has: status, media type, body.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.system.server import PATIENCE_S
from tests.system.tiny_server import Postcondition, start_tiny_server, write_tiny_model

# positive_data_acceptance is ours, `_was_answered`, as some rules cannot be said in a document. Those about resources
# (use_after_free, ensure_resource_availability, object_level_authorization) have nothing to look at here, and neither
# has ignored_auth: the server has no key (test_access.py has all routes with one). No header is required.
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
    allow_header_conformance,
]

# What a lawful request may be refused for all the same: rules between several fields, or between a field and the model.
TOGETHER = {
    "min_tokens": "more than max_tokens",
    "best_of": "another number than n",
    "stream_options": "without stream",
    "top_logprobs": "without logprobs",
    "prompt_logprobs": "with stream",
    "max_tokens": "0 without echo",
    "logit_bias": "ids beyond the vocabulary",
    "continue_final_message": "the last message is not the assistant's, or an answer is to begin",
}
MESSAGES_ONLY = ("messages", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")
NO_TOKENS = "The prompt is empty."  # the vocabulary has nothing for some control characters
ANSWER_TOKENS, CHOICES, PROMPTS = 12, 3, 4  # of generated requests that ask for more than that


def fuzz(url: str, label: str, num_examples: int, seed: int = 0) -> Counter[str]:
    """Send requests to the route `label`, such as "POST /tokenize". Returns how many had which end.

    Raises schemathesis' errors for the first finding, with the smallest request that shows it."""
    operation = find_operation(url, label)
    ends: Counter[str] = Counter()
    with requests.Session() as session:

        def judge(case: Case) -> None:
            if case.meta.generation.mode.is_positive:
                _make_handy(case)
            response = case.call(session=session, timeout=PATIENCE_S)
            case.validate_response(response, checks=CHECKS)
            _was_answered(case, response)
            ends[f"{case.meta.generation.mode.value} {response.status_code}"] += 1

        modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
        for case in operation.schema.iter_coverage_cases(
            operation, generation_modes=modes, generation_config=operation.schema.config.generation
        ):
            judge(case)
        if operation.body or operation.path_parameters:
            for mode in modes:
                _send_random(operation.as_strategy(generation_mode=mode), judge, num_examples, seed)
    return ends


def find_operation(url: str, label: str) -> schemathesis.schemas.APIOperation:
    # Sanitized, a finding would not show fields such as max_tokens.
    config = SchemathesisConfig.from_dict({"output": {"sanitization": {"enabled": False}}})
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", config=config)
    return next(o.ok() for o in schema.get_all_operations() if o.ok().label == label)


def _send_random(cases: object, judge: Callable[[Case], None], num_examples: int, seed: int) -> None:
    settings = hypothesis.settings(
        max_examples=num_examples,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    hypothesis.seed(seed)(settings(hypothesis.given(case=cases)(judge)))()


def _make_handy(case: Case) -> None:
    """A lawful request that asks for a lot asks for less: thousands of them have to be answered."""
    body = case.body
    if case.path == "/tokenize":
        case.body = _either_prompt_or_messages(body)
    if not isinstance(body, dict) or not case.path.startswith("/v1/"):
        return
    for name in ("max_tokens", "max_completion_tokens"):
        if isinstance(body.get(name), int):
            body[name] = 1 + body[name] % ANSWER_TOKENS
    if "messages" in body or body.get("max_tokens", 16) is None:
        body.setdefault("max_completion_tokens" if "messages" in body else "max_tokens", ANSWER_TOKENS)
        body["max_tokens"] = body.get("max_tokens") or ANSWER_TOKENS
    if isinstance(body.get("min_tokens"), int):
        body["min_tokens"] %= ANSWER_TOKENS
    for name in ("n", "best_of"):
        if isinstance(body.get(name), int):
            body[name] = 1 + body[name] % CHOICES
    if isinstance(body.get("prompt"), list) and not isinstance(body["prompt"][0], int):
        body["prompt"] = body["prompt"][:PROMPTS]
    case.body = body


def _either_prompt_or_messages(body: dict) -> dict:
    """/tokenize wants one of them, and some fields belong to the other."""
    messages = body.get("messages")
    if messages and len(messages) % 2:
        return {name: value for name, value in body.items() if name not in ("prompt", "add_special_tokens")}
    texts_only = {name: value for name, value in body.items() if name not in MESSAGES_ONLY}
    return texts_only | {"prompt": body.get("prompt") or "x"}


def _was_answered(case: Case, response: requests.Response) -> None:
    """A request that keeps the document has an answer, unless it is too long or breaks a rule of `TOGETHER`."""
    if not case.meta.generation.mode.is_positive or response.status_code == 200:
        return
    error = response.json()["error"] if response.content else {}
    is_fine = error.get("code") == "context_length_exceeded" or error.get("param") in TOGETHER
    assert is_fine or error["message"] == NO_TOKENS, (
        f"{case.method} {case.path} {json.dumps(case.body)[:2000]}: {response.status_code} {response.text[:500]}"
    )


def labels(url: str) -> list[str]:
    """Every route with its method."""
    paths = requests.get(f"{url}/openapi.json", timeout=PATIENCE_S).json()["paths"]
    return [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.system.fuzzing")
    parser.add_argument("--examples", type=int, default=2000, help="for each route, and as many that break its rules")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a route, such as 'POST /tokenize'")
    parser.add_argument("--minutes", type=int, default=60, help="after which it is a failure")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"not done after {options.minutes} minutes"))
    signal.alarm(60 * options.minutes)
    with tempfile.TemporaryDirectory() as folder:
        server = start_tiny_server(write_tiny_model(Path(folder)), "--check-invariants")
        try:
            postcondition = Postcondition(server.wait_ready())
            for label in labels(server.url):
                if options.only in label:
                    started = time.monotonic()
                    ends = fuzz(server.url, label, options.examples, options.seed)
                    postcondition.check()
                    print(f"{time.monotonic() - started:7.1f} s  {label}: {dict(sorted(ends.items()))}", flush=True)
        finally:
            server.close()


if __name__ == "__main__":
    main()
