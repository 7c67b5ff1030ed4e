"""`headrace generate [MODEL] --prompt TEXT`: tokens on stdout, without a server."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from headrace.cli.flags import SERVER_FIELDS, config_parser, parse_config
from headrace.cli.sampling import add_sampling_flags, sampling_params
from headrace.contracts.sampling_params import SamplingParams
from headrace.errors import HeadraceError

DEFAULTS = SamplingParams(max_tokens=128, temperature=0.0)


def run(argv: Sequence[str]) -> int:
    parser = config_parser("headrace generate", "Continue prompts, without a server.", without=SERVER_FIELDS)
    parser.add_argument(
        "--prompt",
        action="append",
        metavar="TEXT",
        help="A prompt; may be given several times. Default: standard input.",
    )
    parser.add_argument(
        "--chat", action="store_true", help="Take each prompt as a user's message, through the template."
    )
    add_sampling_flags(parser, DEFAULTS)
    settings, args = parse_config(parser, argv)
    prompts: list[str] = args.prompt or [sys.stdin.read()]
    params = sampling_params(args, DEFAULTS)
    from headrace.frontend.llm import LLM

    use_tqdm = None if len(prompts) > 1 else False  # one prompt's bar would be empty until it is full
    try:
        llm = LLM(config=settings)
        if args.chat:
            outputs = llm.chat([[{"role": "user", "content": prompt}] for prompt in prompts], params, use_tqdm=use_tqdm)
        else:
            outputs = llm.generate(prompts, params, use_tqdm=use_tqdm)
    except HeadraceError as error:
        print(f"headrace: error: {error.message}", file=sys.stderr)
        return 1
    for output in outputs:
        print(output.outputs[0].text)
    return 0
