"""The demo model as the oracle sees it: the chat prompts, and transformers' Llama with the weights of the GGUF file."""

from __future__ import annotations

import torch
from gguf import GGUFReader, dequantize
from transformers import LlamaConfig, LlamaForCausalLM

from headrace.config.model_files import locate_model
from headrace.frontend.tokenizer.load import load_tokenizer

QUESTIONS = [
    "What is the capital of France?",
    "Name three colours.",
    "Write a haiku about rain.",
    "What is 2 + 2?",
    "Translate 'good morning' to Spanish.",
    "Who wrote Hamlet?",
    "List the planets of the solar system.",
    "Explain gravity to a child.",
    "def fibonacci(n):",
    "Why is the sky blue?",
    "Tell me a joke about computers.",
    "What does HTTP stand for?",
    "Summarise the story of Cinderella in two sentences.",
    "Give me a recipe for pancakes.",
    "Was ist die Hauptstadt von Deutschland?",
    "What is the boiling point of water in Celsius?",
    "Write one sentence that uses the word 'serendipity'.",
    "How many days are there in a leap year?",
    "Describe the taste of a lemon.",
    "What is the opposite of 'hot'? 🔥",
]
TEMPLATE = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def chat_prompts() -> dict[str, list[int]]:
    """Token ids of the questions in the model's chat template, by request id."""
    tokenizer = load_tokenizer(locate_model(""))
    return {f"q{i}": tokenizer.encode(TEMPLATE.format(q), add_special_tokens=False) for i, q in enumerate(QUESTIONS)}


def reference_model() -> LlamaForCausalLM:
    """transformers' Llama in float32 with the weights of the GGUF file, dequantised by the `gguf` package."""
    reader = GGUFReader(locate_model(""))
    tensors = {t.name: torch.from_numpy(dequantize(t.data, t.tensor_type).copy()) for t in reader.tensors}
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )
    state = {
        "model.embed_tokens.weight": tensors["token_embd.weight"],
        "model.norm.weight": tensors["output_norm.weight"],
        "lm_head.weight": tensors["token_embd.weight"],
    }
    for i in range(config.num_hidden_layers):
        for theirs, ours in NAMES.items():
            state[f"model.layers.{i}.{theirs}.weight"] = tensors[f"blk.{i}.{ours}.weight"]
        state[f"model.layers.{i}.self_attn.q_proj.weight"] = _halves(tensors[f"blk.{i}.attn_q.weight"], 9)
        state[f"model.layers.{i}.self_attn.k_proj.weight"] = _halves(tensors[f"blk.{i}.attn_k.weight"], 3)
    model = LlamaForCausalLM(config).float().eval()
    model.load_state_dict(state)
    return model


def _halves(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """The file has the rows of q and k interleaved, for the rotation of pairs; transformers wants the two halves."""
    return rows.view(heads, rows.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)
