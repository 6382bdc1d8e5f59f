#!/usr/bin/env python3
"""Makes the folders families/* beside this file: tiny random models of what the other goldens do not
show (biases, linear and YaRN positions, sliding windows, experts, Gemma 3), with values of an independent
implementation in float64.

    python3 -m venv venv && venv/bin/pip install torch==2.5.1 transformers==4.57.1
    venv/bin/python make_families.py [NAME ...]

The formats are those of README.md, without optimizer steps. transformers keeps angles in float32, and the
probabilities of a router.
"""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import (Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM)
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

SIZES = dict(vocab_size=61, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2)
MODELS = {
    "llama-biases-linear": (LlamaForCausalLM, LlamaConfig(
        **SIZES, attention_bias=True, mlp_bias=True, rope_scaling={"rope_type": "linear", "factor": 2.5})),
    "mistral-window": (MistralForCausalLM, MistralConfig(**SIZES, head_dim=12, sliding_window=7)),
    "qwen2-yarn-upper-windows": (Qwen2ForCausalLM, Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=9, max_window_layers=1, tie_word_embeddings=True,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64})),
    "qwen3-biases": (Qwen3ForCausalLM, Qwen3Config(
        **SIZES, head_dim=10, attention_bias=True, rope_theta=1e6)),
    "qwen3moe-layer0-dense": (Qwen3MoeForCausalLM, Qwen3MoeConfig(
        **SIZES, head_dim=10, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=12, norm_topk_prob=True,
        mlp_only_layers=[0], rope_theta=1e6)),
    "qwen3moe-every-second": (Qwen3MoeForCausalLM, Qwen3MoeConfig(
        **SIZES, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=10, decoder_sparse_step=2,
        tie_word_embeddings=True)),
    "gemma3-pattern": (Gemma3ForCausalLM, Gemma3TextConfig(
        **SIZES, head_dim=10, query_pre_attn_scalar=7, sliding_window=7, sliding_window_pattern=2,
        rope_local_base_freq=500.0)),
    "gemma3-untied-linear": (Gemma3ForCausalLM, Gemma3TextConfig(
        **SIZES | {"hidden_size": 36}, head_dim=10, query_pre_attn_scalar=5, sliding_window=9, attention_bias=True,
        tie_word_embeddings=False, layer_types=["full_attention", "sliding_attention", "full_attention"],
        rope_scaling={"rope_type": "linear", "factor": 8.0})),
}
BALANCE_COEF = 0.3  # far above a real one, so that its gradient shows
LENGTHS = [1, 2, 9, 33, 70]


def randomise(model, generator):
    norm = 0.0 if model.config.model_type == "gemma3_text" else 1.0
    for name, tensor in model.named_parameters():
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        scale = 0.15 if tensor.ndim < 2 else (1.0 if "embed" in name else 1.6) / tensor.shape[-1] ** 0.5
        tensor.data = (scale * noise + (norm if name.endswith("norm.weight") else 0.0)).float().double()


# The mean over sparse layers of the balance loss of each, of one sequence by itself.
def balance_loss(config, router_logits):
    top = torch.stack(router_logits).softmax(-1).sort(-1, descending=True).values
    k = config.num_experts_per_tok
    assert float((top[..., k - 1] - top[..., k]).min()) > 1e-5  # or the choice is that of a rounding
    losses = [load_balancing_loss_func((layer,), config.num_experts, k) for layer in router_logits]
    return sum(losses) / len(losses)


def gradients_of(loss, model, generator):
    model.zero_grad()
    loss.backward(retain_graph=True)
    gradients = {}
    for parameter, tensor in model.named_parameters():
        flat = tensor.grad.flatten()
        at = torch.randperm(len(flat), generator=generator)[:40].sort().values
        gradients[parameter] = {"l2": float(flat.norm()), "max_abs": float(flat.abs().max()),
                                "indices": at.tolist(), "values": flat[at].tolist()}
    return gradients


def make(name, kind, config, folder):
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    config._attn_implementation = "eager"
    model = kind(config).double().eval()
    randomise(model, generator)
    if config.tie_word_embeddings:
        model.tie_weights()
    sequences = [torch.randint(3, config.vocab_size, (n,), generator=generator) for n in LENGTHS]

    sparse = hasattr(config, "num_experts")
    logits, logprobs, entropies, loss, count, masks, balance = [], [], [], 0, 0, [], 0
    for ids in sequences:
        output = model(ids[None], **({"output_router_logits": True} if sparse else {}))
        row = output.logits[0]
        if sparse:
            balance = balance + len(ids) / sum(LENGTHS) * balance_loss(config, output.router_logits)
        log_softmax = row.log_softmax(-1)
        logits.append(row)
        entropies.append(-(log_softmax.exp() * log_softmax).sum(-1))
        picked = log_softmax[:-1].gather(1, ids[1:, None])[:, 0]
        logprobs.append(picked)
        mask = torch.rand(len(ids) - 1, generator=generator) < 0.7
        masks.append([int(m) for m in mask])
        loss, count = loss - picked[mask].sum(), count + int(mask.sum())
    loss = loss / count
    gradients = gradients_of(loss, model, generator)
    greedy = []
    for ids in sequences[2:4]:
        text, margin = ids.clone(), 1e9
        for _ in range(20):
            with torch.no_grad():
                best = model(text[None]).logits[0, -1].topk(2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            text = torch.cat([text, best.indices[:1]])
        assert margin > 0.004, (name, margin)
        greedy.append({"prompt": ids.tolist(), "greedy": text[len(ids):].tolist()})

    folder.mkdir(parents=True, exist_ok=True)
    config.architectures = [kind.__name__]
    (folder / "config.json").write_text(config.to_json_string(use_diff=True))
    weights = {k: v.detach().float().contiguous() for k, v in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    save_file({"seq_lens": torch.tensor(LENGTHS), "input_ids": torch.cat(sequences),
               "logits": torch.cat(logits).detach().float(), "logprobs": torch.cat(logprobs).detach().float(),
               "entropy": torch.cat(entropies).detach().float()}, folder / "golden_forward.safetensors")
    golden = {"inv_freq": model.model.rotary_emb.inv_freq.tolist(),
              "attention_factor": model.model.rotary_emb.attention_scaling,
              "forward": {"greedy": greedy},
              "ce": {"data": {"sequences": [{"ids": s.tolist(), "loss_mask": m} for s, m in zip(sequences, masks)]},
                     "loss": float(loss), "predicted_tokens": count, "gradients": gradients}}
    if hasattr(model.model, "rotary_emb_local"):
        golden["local_inv_freq"] = model.model.rotary_emb_local.inv_freq.tolist()
    if sparse:
        golden["balance"] = {"coef": BALANCE_COEF, "loss": float(balance), "gradients": gradients_of(
            loss + BALANCE_COEF * balance, model, generator)}
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print(name, float(loss))


for name in sys.argv[1:] or MODELS:
    kind, config = MODELS[name]
    make(name, kind, config, pathlib.Path(__file__).parent / "families" / name)
