"""`headrace generate [MODEL] --prompt TEXT`: tokens on stdout, without a server."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from headrace.cli.flags import SERVER_FIELDS, config_parser, parse_config
from headrace.contracts.sampling_params import SamplingParams
from headrace.errors import HeadraceError


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
    parser.add_argument(
        "--max-tokens", type=int, default=128, metavar="N", help="Most tokens of an answer. Default: 128."
    )
    parser.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy. Default: 0.")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="X", help="Nucleus of probability. Default: 1.")
    parser.add_argument("--top-k", type=int, default=0, metavar="N", help="Most probable tokens; 0 is all. Default: 0.")
    parser.add_argument("--sampling-seed", type=int, metavar="N", help="Seed of the sampling. Default: drawn.")
    settings, args = parse_config(parser, argv)
    prompts: list[str] = args.prompt or [sys.stdin.read()]
    params = SamplingParams(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        seed=args.sampling_seed,
    )
    from headrace.frontend.llm import LLM

    try:
        llm = LLM(config=settings)
        if args.chat:
            outputs = llm.chat([[{"role": "user", "content": prompt}] for prompt in prompts], params)
        else:
            outputs = llm.generate(prompts, params)
    except HeadraceError as error:
        print(f"headrace: error: {error.message}", file=sys.stderr)
        return 1
    for output in outputs:
        print(output.outputs[0].text)
    return 0
