"""Writes tests/data/gguf with the gguf package: files that `tailrace import` must read, and what
they hold.

    build/peers/bin/python bench/peers/gguf_vectors.py

blocks.gguf has a tensor of random blocks in each type that is read; blocks.safetensors has their
values by gguf.quants.dequantize in float32. The others are models of tests/data/golden as the
converter of llama.cpp writes them: rows of queries and keys of llama in pairs, norms of gemma3 with
1 added, the scaling of Llama 3 as factors. Their vocabularies are made up. Everything follows from
the seed.
"""
import json
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data"
OUT = DATA / "gguf"

BLOCK_TYPES = [Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0,
               Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K]
# Where the float16 factors of a block stand.
FACTORS = {Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
           Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2],
           Type.Q6_K: [208]}

LAYER = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}
OTHER = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
         "lm_head.weight": "output.weight"}


def read_safetensors(path):
    """{name: (dtype, shape, bytes)} of a file."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"],
                   raw[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in header.items()}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        raw = values.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def to_float(dtype, shape, raw):
    if dtype == "F32":
        return np.frombuffer(raw, "<f4").reshape(shape)
    bits = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
    return bits.view(np.float32).reshape(shape)


def write_blocks(rng):
    writer = gguf.GGUFWriter(OUT / "blocks.gguf", "none")
    expected = {}
    for type_ in BLOCK_TYPES:
        block, size = gguf.GGML_QUANT_SIZES[type_]
        rows, row = 3, 512
        if type_ == Type.F32:
            raw = rng.normal(size=(rows, row)).astype("<f4")
        elif type_ == Type.F16:
            raw = rng.normal(size=(rows, row)).astype("<f2")
            raw.view("<u2")[0, :4] = [1, 0x8001, 0x03FF, 0x8000]  # subnormal ones, and minus zero
        else:
            raw = rng.integers(0, 256, size=(rows, row // block * size), dtype=np.uint8)
            if type_ == Type.BF16:
                raw.view("<u2")[:] = (rng.normal(size=(rows, row)).astype("<f4").view("<u4") >> 16
                                      ).astype("<u2")
            blocks = raw.reshape(-1, size)
            for at in FACTORS.get(type_, []):
                factors = rng.normal(scale=0.01, size=len(blocks)).astype("<f2")
                factors[0] = np.float16(6e-8)  # a subnormal one
                blocks[:, at:at + 2] = factors.view(np.uint8).reshape(-1, 2)
        name = type_.name.lower()
        dtype = None if raw.dtype != np.uint8 else type_
        writer.add_tensor(name, raw, raw_dtype=dtype)
        expected[name] = gguf.quants.dequantize(raw, type_).astype(np.float32)
    finish(writer)
    write_safetensors(OUT / "blocks.safetensors", expected)


def paired(values, heads):
    """As the converter of llama.cpp does with queries and keys of Llama."""
    shape = values.shape
    return values.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def gguf_name(name, post_norms):
    if name in OTHER:
        return OTHER[name]
    _, _, layer, rest = name.split(".", 3)
    what, kind = rest.rsplit(".", 1)
    if what == "post_attention_layernorm":
        return f"blk.{layer}.{'post_attention_norm' if post_norms else 'ffn_norm'}.{kind}"
    return f"blk.{layer}.{LAYER[what]}.{kind}"


def llama3_factors(config):
    scaling, dim = config["rope_scaling"], config["head_dim"]
    freqs = 1.0 / (config["rope_theta"] ** (np.arange(0, dim, 2, dtype=np.float32) / dim))
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    length = scaling["original_max_position_embeddings"]
    factors = []
    for freq in freqs:
        wave = 2 * np.pi / freq
        if wave < length / high:
            factors.append(1)
        elif wave > length / low:
            factors.append(factor)
        else:
            smooth = (length / wave - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def add_vocabulary(writer, size, pre):
    if pre is None:  # SentencePiece
        tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(20)]
        kinds = [2, 3, 3] + [6] * 20
        pieces = ["▁", "a", "b", "c", "▁a", "ab", "▁ab", "bc", "abc"]
        pieces += [chr(0x4E00 + i) for i in range(size - len(tokens) - len(pieces))]
        tokens, kinds = tokens + pieces, kinds + [1] * len(pieces)
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([0.0] * 23 + [-float(i) for i in range(len(pieces))])
    else:
        tokens = ["<|a|>", "<|s|>", "<|e|>"] + [chr(0x41 + i) for i in range(size - 5)] + ["ab", "abc"]
        kinds = [3] * 3 + [1] * (size - 3)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges(["a b", "ab c"])
    writer.add_token_list(tokens[:size])
    writer.add_token_types(kinds[:size])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")


def write_model(folder, arch, name, pre, types=None):
    source = DATA / "golden" / folder
    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(OUT / f"{name}.gguf", arch)
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim", config["hidden_size"] // heads)
    writer.add_name(name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv)
    if dim != config["hidden_size"] // heads or arch != "llama":
        writer.add_key_length(dim)
        writer.add_value_length(dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(dim)
    scaling = config.get("rope_scaling")
    if scaling and scaling["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
    gemma = arch == "gemma3"
    if gemma:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([one == "sliding_attention" for one in config["layer_types"]])
        writer.add_rope_freq_base_swa(config["rope_local_base_freq"])
    add_vocabulary(writer, config["vocab_size"], pre)
    for tensor, (dtype, shape, raw) in read_safetensors(source / "model.safetensors").items():
        values = to_float(dtype, shape, raw)
        if arch == "llama" and ".q_proj." in tensor:
            values = paired(values, heads)
        if arch == "llama" and ".k_proj." in tensor:
            values = paired(values, kv)
        if gemma and tensor.endswith("norm.weight"):
            values = values + np.float32(1)
        target = gguf_name(tensor, gemma)
        if dtype == "BF16" and values.ndim == 2:
            bits = (np.ascontiguousarray(values).view("<u4") >> 16).astype("<u2")
            writer.add_tensor(target, bits.view(np.uint8), raw_dtype=Type.BF16)
        else:
            writer.add_tensor(target, np.ascontiguousarray(values))
    if scaling and scaling["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    OUT.mkdir(exist_ok=True)
    write_blocks(np.random.default_rng(59))
    write_model("llama3-ropescaled-tied-bf16", "llama", "llama", "llama-bpe")
    write_model("families/llama-biases-linear", "llama", "llama-biases", "smollm")
    write_model("qwen2-tied-f32", "qwen2", "qwen2", "qwen2")
    write_model("qwen3-headdim-untied-bf16", "qwen3", "qwen3", "qwen2")
    write_model("families/gemma3-pattern", "gemma3", "gemma3", None)


main()
