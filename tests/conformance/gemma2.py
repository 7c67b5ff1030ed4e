"""Gemma 2 as a program, to test the ops that Llama does not have: captured, and against transformers.

Source: Gemma Team, Gemma 2, 2024; sequence and names follow transformers' models/gemma2/modeling_gemma2.py.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from headrace.config.model_facts import RopeFacts
from headrace.model import rope
from headrace.model.ops import Activation, AttentionSpec, Memory, Ops, Step, Weight
from tests.conformance.batches import stored

CONFIG = Gemma2Config(
    vocab_size=331,
    hidden_size=72,
    intermediate_size=120,
    num_hidden_layers=2,  # the first with a sliding window
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=24,
    query_pre_attn_scalar=32,
    sliding_window=37,
    attn_logit_softcapping=5.0,
    final_logit_softcapping=8.0,
    max_position_embeddings=256,
    attn_implementation="eager",
    initializer_range=0.2,
)


def make_reference() -> Gemma2ForCausalLM:
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(CONFIG).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, -0.5, 0.5)
    return model


class Gemma2:
    def __init__(self, reference: Gemma2ForCausalLM, memory: Memory) -> None:
        tensors = {name: parameter.detach().numpy() for name, parameter in reference.named_parameters()}

        def matrix(*names: str) -> Weight:
            return memory.pack_matrix([stored(tensors[f"model.{name}.weight"]) for name in names])

        def norm(name: str) -> Weight:
            return memory.pack_vector(stored(tensors[f"model.{name}.weight"] + np.float32(1)))

        self.eps = CONFIG.rms_norm_eps
        self.embed = matrix("embed_tokens")
        self.norm = norm("norm")
        facts = RopeFacts(CONFIG.rope_parameters["rope_theta"], CONFIG.head_dim)
        self.rope = memory.rope_table(rope.frequencies(facts), CONFIG.max_position_embeddings)
        self.layers = []
        for i in range(CONFIG.num_hidden_layers):
            at = f"layers.{i}."
            spec = AttentionSpec(
                layer=i,
                num_heads=CONFIG.num_attention_heads,
                num_kv_heads=CONFIG.num_key_value_heads,
                head_dim=CONFIG.head_dim,
                scale=CONFIG.query_pre_attn_scalar**-0.5,
                window=CONFIG.sliding_window if CONFIG.layer_types[i] == "sliding_attention" else None,
                softcap=CONFIG.attn_logit_softcapping,
            )
            gate, up = (stored(tensors[f"model.{at}mlp.{name}_proj.weight"]) for name in ("gate", "up"))
            self.layers.append(
                (
                    norm(at + "input_layernorm"),
                    matrix(*(f"{at}self_attn.{name}_proj" for name in "qkv")),
                    spec,
                    matrix(at + "self_attn.o_proj"),
                    norm(at + "post_attention_layernorm"),
                    norm(at + "pre_feedforward_layernorm"),
                    memory.pack_gated(gate, up),
                    matrix(at + "mlp.down_proj"),
                    norm(at + "post_feedforward_layernorm"),
                )
            )

    @property
    def attention_layers(self) -> tuple[AttentionSpec, ...]:
        return tuple(layer[2] for layer in self.layers)

    def forward(self, ops: Ops, step: Step) -> Activation:
        q_width, kv_width = (
            heads * CONFIG.head_dim for heads in (CONFIG.num_attention_heads, CONFIG.num_key_value_heads)
        )
        x = ops.scale(ops.embed(step.token_ids, self.embed), CONFIG.hidden_size**0.5)
        for norm1, qkv, attention, out, norm1_after, norm2, gate_up, down, norm2_after in self.layers:
            q, k, v = ops.split(ops.linear(ops.rms_norm(x, norm1, self.eps), qkv), (q_width, kv_width, kv_width))
            q, k = ops.rope(q, self.rope, step), ops.rope(k, self.rope, step)
            attended = ops.linear(ops.paged_attention(q, k, v, attention, step), out)
            x = ops.rms_residual(attended, norm1_after, self.eps, x)
            inner = ops.gated_mlp(ops.rms_norm(x, norm2, self.eps), gate_up, "gelu_tanh")
            x = ops.rms_residual(ops.linear(inner, down), norm2_after, self.eps, x)
        x = ops.rms_norm(ops.take_rows(x, step.sample_rows), self.norm, self.eps)
        return ops.softcap(ops.linear(x, self.embed), CONFIG.final_logit_softcapping)
