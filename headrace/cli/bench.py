"""`headrace bench serve|throughput|latency|startup`. Flags are named as in `vllm bench`, where the idea is the same."""

from __future__ import annotations

import argparse
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.cli.bench_flags import (
    add_file_flags,
    add_random_flags,
    add_report_flags,
    count,
    goal,
    json_object,
    not_negative,
    positive,
    positive_or_inf,
    random_lengths,
    zero_or_more,
)
from headrace.cli.flags import SERVER_FIELDS, config_parser, parse_config
from headrace.config.address import API_KEY_VARIABLE
from headrace.errors import ConfigError, HeadraceError

if TYPE_CHECKING:  # loaded when the flags are known to be right
    from headrace.bench.report import Report

OTHER_API_KEY_VARIABLE = "OPENAI_API_KEY"
SEED_BITS = 32


def run(argv: Sequence[str]) -> int:
    if not argv or argv[0] not in COMMANDS:
        asked_for_help = list(argv[:1]) in (["-h"], ["--help"])
        print(usage(), file=sys.stdout if asked_for_help else sys.stderr)
        return 0 if asked_for_help else 2
    try:
        return COMMANDS[argv[0]][1](argv[1:])
    except HeadraceError as error:
        print(f"headrace: error: {error.message}", file=sys.stderr)
        return 1


def usage() -> str:
    lines = [f"  {name:<10}  {what}" for name, (what, _) in COMMANDS.items()]
    return "\n".join(["usage: headrace bench WHAT ...", "", *lines, "", "headrace bench WHAT --help tells its flags."])


# ---- what is measured -----------------------------------------------------------------------------------------------


def serve(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="headrace bench serve", description="Load on a running server, over HTTP.", allow_abbrev=False
    )
    server = parser.add_argument_group("the server")
    server.add_argument("--base-url", metavar="URL", help="Default: http://HOST:PORT of the next two.")
    server.add_argument("--host", default="127.0.0.1", metavar="HOST", help="Default: 127.0.0.1.")
    server.add_argument("--port", type=count, default=8000, metavar="N", help="Default: 8000.")
    server.add_argument(
        "--backend", choices=("openai", "openai-chat"), default="openai", help="Completions, or chat completions."
    )
    server.add_argument("--model", metavar="NAME", help="The model's name. Default: the first that the server lists.")
    server.add_argument(
        "--ready-check-timeout-sec",
        type=not_negative,
        default=60.0,
        metavar="S",
        help="Wait this long for the server to list its models; 0 does not wait. Default: 60.",
    )
    server.add_argument(
        "--request-timeout", type=positive, default=600.0, metavar="S", help="A request that takes longer has failed."
    )
    load = parser.add_argument_group("load")
    load.add_argument("--num-prompts", type=count, default=1000, metavar="N", help="Requests. Default: 1000.")
    load.add_argument(
        "--request-rate",
        type=positive_or_inf,
        default=math.inf,
        metavar="X",
        help="Requests a second, which arrive whether or not the server keeps up; latencies count from the arrival. "
        "Default: inf, all at once, or as fast as --max-concurrency streams ask.",
    )
    load.add_argument(
        "--burstiness",
        type=positive,
        default=1.0,
        metavar="X",
        help="Shape of the Gamma distribution of times between arrivals: 1 is Poisson, less is burstier.",
    )
    load.add_argument(
        "--max-concurrency",
        type=count,
        metavar="N",
        help="Most requests under way. Without --request-rate: so many streams, each of which asks anew when it is "
        "answered.",
    )
    load.add_argument(
        "--num-warmups", type=zero_or_more, default=0, metavar="N", help="Requests before those that are measured."
    )
    prompts = parser.add_argument_group("prompts")
    prompts.add_argument(
        "--dataset-name",
        choices=("random", "custom", "sharegpt"),
        help="random, or the prompts of --dataset-path. custom is the same as sharegpt: each entry says what it is.",
    )
    prompts.add_argument(
        "--dataset-path",
        metavar="FILE",
        help="JSON array or JSON lines of prompt, messages or conversations; docs/benchmarking.md.",
    )
    prompts.add_argument(
        "--output-len", type=count, default=128, metavar="N", help="Tokens of an answer where the file does not say."
    )
    prompts.add_argument("--disable-shuffle", action="store_true", help="Ask the file's prompts in their order.")
    add_random_flags(prompts, input_len=1024, output_len=128, prefix="--random-")
    prompts.add_argument(
        "--random-text", action="store_true", help="Random words and not token ids, as chat always has."
    )
    prompts.add_argument(
        "--seed",
        type=zero_or_more,
        metavar="N",
        help="Of prompts and arrivals. Default: drawn, so that no cache has the prompts of an earlier run.",
    )
    prompts.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        help="Ask for answers of full length. Default: for random prompts, not for those of a file.",
    )
    prompts.add_argument("--temperature", type=not_negative, default=0.0, metavar="X", help="Default: 0, greedy.")
    prompts.add_argument(
        "--extra-body", type=json_object, default={}, metavar="JSON", help="Fields that go into every request's body."
    )
    add_report_flags(parser)
    parser.add_argument(
        "--goodput",
        nargs="+",
        type=goal,
        default=[],
        metavar="NAME:MS",
        help="Count requests a second that were answered within all of these, such as ttft:500 tpot:50 e2el:5000.",
    )
    args = parser.parse_args(argv)
    dataset = args.dataset_name or ("custom" if args.dataset_path else "random")
    if (dataset == "random") != (args.dataset_path is None):
        parser.error(
            "argument --dataset-path: a file is for --dataset-name custom or sharegpt"
            if dataset == "random"
            else f"argument --dataset-path: --dataset-name {dataset} needs a file"
        )
    check_files(args)
    from headrace.bench.online import LoadSettings, bench_serve

    host = f"[{args.host}]" if ":" in args.host else args.host
    settings = LoadSettings(
        base_url=args.base_url or f"http://{host}:{args.port}",
        backend=args.backend,
        model=args.model,
        num_prompts=args.num_prompts,
        request_rate=args.request_rate,
        burstiness=args.burstiness,
        max_concurrency=args.max_concurrency,
        dataset_name=dataset,
        dataset_path=args.dataset_path,
        output_len=args.output_len,
        shuffle=not args.disable_shuffle,
        random_lengths=random_lengths(args, "random_"),
        random_text=args.random_text,
        token_ids=args.token_ids,
        seed=drawn(args.seed),
        ignore_eos=dataset == "random" if args.ignore_eos is None else args.ignore_eos,
        temperature=args.temperature,
        extra_body=args.extra_body,
        num_warmups=args.num_warmups,
        ready_timeout_s=args.ready_check_timeout_sec,
        request_timeout_s=args.request_timeout,
        goals=dict(args.goodput),
        latencies=args.percentile_metrics,
        percentiles=args.metric_percentiles,
    )
    report = bench_serve(settings, api_key())
    publish(report, args)
    return 0 if report.results["completed"] else 1


def throughput(argv: Sequence[str]) -> int:
    parser = config_parser(
        "headrace bench throughput", "Many prompts at once, without a server.", without=SERVER_FIELDS
    )
    parser.add_argument("--num-prompts", type=count, default=100, metavar="N", help="Default: 100.")
    parser.add_argument(
        "--num-warmups", type=zero_or_more, default=0, metavar="N", help="Whole runs before. Default: 0."
    )
    add_random_flags(parser, input_len=128, output_len=128, prefix="--random-", alias="--")
    return run_offline(parser, argv, "bench_throughput", lambda args: (args.num_prompts, args.num_warmups, 1))


def latency(argv: Sequence[str]) -> int:
    parser = config_parser(
        "headrace bench latency", "One batch after another, without a server.", without=SERVER_FIELDS
    )
    parser.add_argument("--batch-size", type=count, default=8, metavar="N", help="Prompts in a batch. Default: 8.")
    parser.add_argument("--num-iters", type=count, default=10, metavar="N", help="Batches. Default: 10.")
    parser.add_argument(
        "--num-iters-warmup", type=zero_or_more, default=2, metavar="N", help="Batches before. Default: 2."
    )
    add_random_flags(parser, input_len=32, output_len=128, prefix="--random-", alias="--")
    return run_offline(
        parser, argv, "bench_latency", lambda args: (args.batch_size, args.num_iters_warmup, args.num_iters)
    )


def run_offline(
    parser: argparse.ArgumentParser,
    argv: Sequence[str],
    benchmark: str,
    sizes: Callable[[argparse.Namespace], tuple[int, int, int]],
) -> int:
    """`sizes` are the prompts of a batch, batches to warm up, batches to measure."""
    parser.add_argument(
        "--prompt-seed", type=zero_or_more, metavar="N", help="Of the prompts (--seed is the model's). Default: drawn."
    )
    add_report_flags(parser)
    config, args = parse_config(parser, argv)
    check_files(args)
    from headrace.bench import offline

    num_prompts, num_warmups, num_iterations = sizes(args)
    settings = offline.OfflineSettings(
        num_prompts=num_prompts,
        lengths=random_lengths(args, "random_"),
        num_warmups=num_warmups,
        num_iterations=num_iterations,
        prompt_seed=drawn(args.prompt_seed),
        token_ids=args.token_ids,
        latencies=args.percentile_metrics,
        percentiles=args.metric_percentiles,
    )
    publish(getattr(offline, benchmark)(config, settings), args)
    return 0


def startup(argv: Sequence[str]) -> int:
    ours = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    ours.add_argument("--num-iters", type=count, default=5, metavar="N", help="Starts. Default: 5.")
    add_file_flags(ours)
    args, flags = ours.parse_known_args(argv)
    parser = config_parser(
        "headrace bench startup",
        "Start `headrace serve`, with its own flags, several times.",
        without=("host", "port", "api_key"),
        parents=[ours],
    )
    config, _ = parse_config(parser, argv)
    check_files(args)
    from headrace.bench.startup import bench_startup

    publish(bench_startup(config, flags, args.num_iters, api_key(API_KEY_VARIABLE)), args)
    return 0


COMMANDS: dict[str, tuple[str, Callable[[Sequence[str]], int]]] = {
    "serve": ("load on a running server: latencies, throughput, goodput", serve),
    "throughput": ("many prompts at once, without a server", throughput),
    "latency": ("one batch after another, without a server", latency),
    "startup": ("from the command to the first token, and where the time goes", startup),
}


# ---- keys, seeds, files ----------------------------------------------------------------------------------------------


def drawn(seed: int | None) -> int:
    return secrets.randbits(SEED_BITS) if seed is None else seed


def api_key(*variables: str) -> str | None:
    """Of the environment, and never of a flag, which every user of the machine can read. HEADRACE_API_KEY may have
    several, of which any will do."""
    for variable in variables or (API_KEY_VARIABLE, OTHER_API_KEY_VARIABLE):
        if keys := os.environ.get(variable, "").split():
            return keys[0]
    return None


def check_files(args: argparse.Namespace) -> None:
    """Raises `ConfigError` for what could not be written: before the run, not after it."""
    if args.plot is not None:
        from headrace.bench.plot import check_can_plot

        check_can_plot()
    for flag, path in (("--output-json", args.output_json), ("--plot", args.plot)):
        if path is not None and not os.access(path.parent, os.W_OK):
            raise ConfigError(f"there is no folder {path.parent} to write to", flag=flag)
        if path is not None and path.is_dir():
            raise ConfigError(f"{path} is a folder; name a file", flag=flag)
    if args.save_result and not os.access(args.result_dir, os.W_OK):
        raise ConfigError(f"there is no folder {args.result_dir} to write to", flag="--result-dir")


def publish(report: Report, args: argparse.Namespace) -> None:
    """To the terminal and into the files that were asked for."""
    print(report.render())
    files = [] if args.output_json is None else [args.output_json]
    if args.save_result:
        files.append(args.result_dir / time.strftime(f"bench-{report.benchmark}-%Y%m%d-%H%M%S.json"))
    for path in files:
        report.write_json(path, ["headrace", *sys.argv[1:]], with_records=getattr(args, "save_detailed", False))
        print(f"written: {path}")
    if args.plot is not None:
        from headrace.bench.plot import draw

        draw(report, args.plot)
        print(f"drawn: {args.plot}")
