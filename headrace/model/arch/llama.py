"""Llama: pre-norm decoder, rotary positions, grouped-query attention, gated MLP.

Source: Touvron et al., LLaMA, 2023; names follow transformers' models/llama/modeling_llama.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config.model_facts import ModelFacts
from headrace.model.ops import Activation, AttentionSpec, Ops, Step, Weight
from headrace.model.weights import CheckpointNames, MatrixSpec, Part, RopeSpec, VectorSpec, WeightSpec

SAFETENSORS = CheckpointNames(
    names={
        "embed": "model.embed_tokens.weight",
        "norm": "model.norm.weight",
        "lm_head": "lm_head.weight",
        "layers.{}.norm1": "model.layers.{}.input_layernorm.weight",
        "layers.{}.q": "model.layers.{}.self_attn.q_proj.weight",
        "layers.{}.k": "model.layers.{}.self_attn.k_proj.weight",
        "layers.{}.v": "model.layers.{}.self_attn.v_proj.weight",
        "layers.{}.out": "model.layers.{}.self_attn.o_proj.weight",
        "layers.{}.norm2": "model.layers.{}.post_attention_layernorm.weight",
        "layers.{}.gate": "model.layers.{}.mlp.gate_proj.weight",
        "layers.{}.up": "model.layers.{}.mlp.up_proj.weight",
        "layers.{}.down": "model.layers.{}.mlp.down_proj.weight",
    },
    # inverse frequencies are computed; a tied lm_head may be stored a second time
    ignored=(r".*\.rotary_emb\.inv_freq", r"lm_head\.weight"),
)

GGUF = CheckpointNames(
    names={
        "embed": "token_embd.weight",
        "norm": "output_norm.weight",
        "lm_head": "output.weight",
        "layers.{}.norm1": "blk.{}.attn_norm.weight",
        "layers.{}.q": "blk.{}.attn_q.weight",
        "layers.{}.k": "blk.{}.attn_k.weight",
        "layers.{}.v": "blk.{}.attn_v.weight",
        "layers.{}.out": "blk.{}.attn_output.weight",
        "layers.{}.norm2": "blk.{}.ffn_norm.weight",
        "layers.{}.gate": "blk.{}.ffn_gate.weight",
        "layers.{}.up": "blk.{}.ffn_up.weight",
        "layers.{}.down": "blk.{}.ffn_down.weight",
    },
    # llama.cpp's converter permutes them for its pairwise rope
    interleaved=frozenset({"layers.{}.q", "layers.{}.k"}),
)


class Llama:
    checkpoints: Mapping[str, CheckpointNames] = {"safetensors": SAFETENSORS, "gguf": GGUF}

    def __init__(self, facts: ModelFacts, weights: Mapping[str, Weight]) -> None:
        self.eps = facts.rms_norm_eps
        self.attention_layers = self.attention_specs(facts)
        self.q_width = facts.num_attention_heads * facts.head_dim
        self.kv_width = facts.num_key_value_heads * facts.head_dim
        self.embed = weights["embed"]
        self.norm = weights["norm"]
        self.lm_head = weights["embed" if facts.tie_word_embeddings else "lm_head"]
        self.rope = weights["rope"]
        self.layers = [_Layer(weights, f"layers.{i}", spec) for i, spec in enumerate(self.attention_layers)]

    @staticmethod
    def attention_specs(facts: ModelFacts) -> tuple[AttentionSpec, ...]:
        return tuple(
            AttentionSpec(
                layer=layer,
                num_heads=facts.num_attention_heads,
                num_kv_heads=facts.num_key_value_heads,
                head_dim=facts.head_dim,
                scale=facts.head_dim**-0.5,
            )
            for layer in range(facts.num_hidden_layers)
        )

    @staticmethod
    def weight_specs(facts: ModelFacts) -> list[WeightSpec]:
        hidden, inner, vocab = facts.hidden_size, facts.intermediate_size, facts.vocab_size
        q_width = facts.num_attention_heads * facts.head_dim
        kv_width = facts.num_key_value_heads * facts.head_dim
        specs: list[WeightSpec] = [
            MatrixSpec("embed", (Part("embed", (vocab, hidden)),)),
            VectorSpec("norm", hidden),
            RopeSpec("rope", facts.rope),
        ]
        if not facts.tie_word_embeddings:
            specs.append(MatrixSpec("lm_head", (Part("lm_head", (vocab, hidden)),)))
        for i in range(facts.num_hidden_layers):
            at = f"layers.{i}."
            q, k, v = (
                Part(at + "q", (q_width, hidden), facts.num_attention_heads),
                Part(at + "k", (kv_width, hidden), facts.num_key_value_heads),
                Part(at + "v", (kv_width, hidden)),
            )
            gate, up = Part(at + "gate", (inner, hidden)), Part(at + "up", (inner, hidden))
            specs += [
                VectorSpec(at + "norm1", hidden),
                MatrixSpec(at + "qkv", (q, k, v)),
                MatrixSpec(at + "out", (Part(at + "out", (hidden, q_width)),)),
                VectorSpec(at + "norm2", hidden),
                MatrixSpec(at + "gate_up", (gate, up), is_gated=True),
                MatrixSpec(at + "down", (Part(at + "down", (hidden, inner)),)),
            ]
        return specs

    def forward(self, ops: Ops, step: Step) -> Activation:
        x = ops.embed(step.token_ids, self.embed)  # [num_tokens, hidden]
        for layer in self.layers:
            qkv = ops.linear(ops.rms_norm(x, layer.norm1, self.eps), layer.qkv)
            q, k, v = ops.split(qkv, (self.q_width, self.kv_width, self.kv_width))
            q, k = ops.rope(q, self.rope, step), ops.rope(k, self.rope, step)
            attended = ops.paged_attention(q, k, v, layer.attention, step)  # [num_tokens, heads * head_dim]
            if layer is self.layers[-1]:  # nobody will look at the other rows again
                attended, x = ops.take_rows(attended, step.sample_rows), ops.take_rows(x, step.sample_rows)
            x = ops.linear_residual(attended, layer.out, x)
            inner = ops.gated_mlp(ops.rms_norm(x, layer.norm2, self.eps), layer.gate_up, "silu")
            x = ops.linear_residual(inner, layer.down, x)
        return ops.linear(ops.rms_norm(x, self.norm, self.eps), self.lm_head)  # [num_samples, vocab]


class _Layer:
    def __init__(self, weights: Mapping[str, Weight], at: str, attention: AttentionSpec) -> None:
        self.attention = attention
        self.norm1 = weights[at + ".norm1"]
        self.qkv = weights[at + ".qkv"]
        self.out = weights[at + ".out"]
        self.norm2 = weights[at + ".norm2"]
        self.gate_up = weights[at + ".gate_up"]
        self.down = weights[at + ".down"]
