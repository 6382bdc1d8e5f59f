"""Peer of `tailrace bench engine`: llama.cpp's own llama-batched-bench on a model of the same geometry.

A geometry has random weights in fp32, and a KV cache of them. A folder's model (--model) is written as GGUF, in bf16 or
as --dtype says, with the KV cache that llama.cpp has by default (fp16). Each row is of flash attention or of none,
whichever was faster. llama-batched-bench feeds random ids and samples nothing, which is less work than the bench does:
Tailrace draws each token and computes its log-probability.
"""
import json
import pathlib
import re
import statistics
import subprocess
import tempfile

import peer

PEERS = pathlib.Path(__file__).resolve().parents[2] / "build" / "peers"
PROGRAM = PEERS / "llama.cpp" / "build" / "bin" / "llama-batched-bench"
# What the tensors of a folder are called in a GGUF.
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def start_gguf(path, sizes, positions, eps=1e-5, theta=10000.0):
    """The head of a Llama without a tokenizer."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(sizes["layers"])
    writer.add_context_length(positions)
    writer.add_embedding_length(sizes["hidden"])
    writer.add_feed_forward_length(sizes["ffn"])
    writer.add_head_count(sizes["heads"])
    writer.add_head_count_kv(sizes["kv_heads"])
    writer.add_rope_dimension_count(sizes["hidden"] // sizes["heads"])
    writer.add_rope_freq_base(theta)
    writer.add_layer_norm_rms_eps(eps)
    writer.add_vocab_size(sizes["vocab"])
    writer.add_tokenizer_model("no_vocab")
    return writer


def end_gguf(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_model(path, folder, sizes, positions, dtype):
    """The model of a folder, every matrix in `dtype`."""
    import gguf
    from safetensors.torch import load_file

    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    head_dim = config.get("head_dim") or sizes["hidden"] // sizes["heads"]
    if (config["architectures"] != ["LlamaForCausalLM"] or config.get("rope_scaling") or
            head_dim * sizes["heads"] != sizes["hidden"]):
        raise peer.Mistake(f"{folder}: this peer writes plain Llama models alone, without scaled positions")
    kind = {"bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0,
            "fp32": gguf.GGMLQuantizationType.F32}[dtype]
    writer = start_gguf(path, sizes, positions, config["rms_norm_eps"], config.get("rope_theta", 10000.0))
    writer.add_file_type({"bf16": gguf.LlamaFileType.MOSTLY_BF16, "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
                          "fp32": gguf.LlamaFileType.ALL_F32}[dtype])
    tensors = {name: tensor for file in sorted(pathlib.Path(folder).glob("*.safetensors"))
               for name, tensor in load_file(file).items()}
    if config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)
    count = 0
    for name, tensor in tensors.items():
        values = tensor.float().numpy()
        count += values.size
        for part, heads in (("q_proj", sizes["heads"]), ("k_proj", sizes["kv_heads"])):
            if part in name:  # llama.cpp rotates pairs that lie side by side
                values = values.reshape(heads, 2, head_dim // 2, -1).swapaxes(1, 2).reshape(values.shape)
        if values.ndim > 1:
            writer.add_tensor(gguf_name(name), gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), values)
    end_gguf(writer)
    return count


def gguf_name(name):
    whole = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight"}
    if name in whole:
        return whole[name]
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
    if not layer or layer[2] not in NAMES:
        raise peer.Mistake(f"this peer knows no tensor {name}")
    return f"blk.{layer[1]}.{NAMES[layer[2]]}.weight"


def write_random(path, sizes, positions):
    """A Llama of random weights without lm_head: its embeddings are tied."""
    import gguf
    import numpy

    draw = numpy.random.default_rng(1)
    hidden, ffn, head_dim = sizes["hidden"], sizes["ffn"], sizes["hidden"] // sizes["heads"]
    writer = start_gguf(path, sizes, positions)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    count = 0

    def add(name, *shape):
        nonlocal count
        values = draw.standard_normal(shape, numpy.float32) / shape[-1] ** 0.5
        writer.add_tensor(name, values if len(shape) > 1 else numpy.ones(shape, numpy.float32))
        count += values.size

    add("token_embd.weight", sizes["vocab"], hidden)
    for layer in range(sizes["layers"]):
        add(f"blk.{layer}.attn_norm.weight", hidden)
        add(f"blk.{layer}.attn_q.weight", sizes["heads"] * head_dim, hidden)
        add(f"blk.{layer}.attn_k.weight", sizes["kv_heads"] * head_dim, hidden)
        add(f"blk.{layer}.attn_v.weight", sizes["kv_heads"] * head_dim, hidden)
        add(f"blk.{layer}.attn_output.weight", hidden, sizes["heads"] * head_dim)
        add(f"blk.{layer}.ffn_norm.weight", hidden)
        add(f"blk.{layer}.ffn_gate.weight", ffn, hidden)
        add(f"blk.{layer}.ffn_up.weight", ffn, hidden)
        add(f"blk.{layer}.ffn_down.weight", hidden, ffn)
    add("output_norm.weight", hidden)
    end_gguf(writer)
    return count


def numbers(text):
    return [peer.positive(word) for word in text.split(",")]


def run(model, options, flash_attention):
    """Tokens/s of llama-batched-bench, (prefill, decode) by batch size; one run of each is left out, to warm up."""
    batches = [batch for batch in options.batch for _ in range(options.runs + 1)]
    cache = "f16" if options.model else "f32"
    command = [PROGRAM, "-m", model, "-c", max(batches) * (options.prompt + options.new), "-b", 2048, "-ub", 512,
               "-ctk", cache, "-ctv", cache, "-fa", flash_attention, "-t", options.threads, "-tb", options.threads,
               "-npp", options.prompt, "-ntg", options.new, "-npl", ",".join(map(str, batches)),
               "--output-format", "jsonl"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    lines = re.findall(r"^\{.*\}$", done.stdout + done.stderr, re.MULTILINE)
    if done.returncode != 0 or len(lines) != len(batches):
        raise peer.Mistake(f"llama-batched-bench ended with {done.returncode} and {len(lines)} of {len(batches)} rows: "
                           + "\n       ".join(done.stderr.splitlines()[-5:]))
    rows = [json.loads(line) for line in lines]
    return {batch: [[row[key] for row in rows if row["pl"] == batch][1:] for key in ("speed_pp", "speed_tg")]
            for batch in options.batch}


def measure():
    parser = peer.Parser(__doc__, "build/peers/bin/python bench/peers/llama_cpp.py --geometry small --batch 1,64")
    parser.measures()
    parser.add_argument("--batch", type=numbers, default=[1, 8, 64, 128], help="decoded together [1,8,64,128]")
    parser.add_argument("--prompt", type=peer.positive, default=64, help="tokens of a prompt [64]")
    parser.add_argument("--new", type=peer.positive, default=64, help="tokens behind it [64]")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "q8_0"), help="of a folder's matrices [bf16]")
    parser.add_argument("--runs", type=peer.positive, default=5, help="measured runs of each batch size [5]")
    options = parser.parse_args()
    if not PROGRAM.exists():
        raise peer.Mistake("llama.cpp is not built.\n       Run 'bench/peers/setup.sh llama'.")
    if options.dtype and not options.model:
        raise peer.Mistake("--dtype is of a folder's model; geometries are fp32")
    name, sizes = peer.chosen_model(options)
    dtype = options.dtype or ("bf16" if options.model else "fp32")
    positions = options.prompt + options.new
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "model.gguf"
        if options.model:
            parameters = write_model(model, options.model, sizes, positions, dtype)
        else:
            parameters = write_random(model, sizes, positions)
        ways = [run(model, options, flash_attention) for flash_attention in ("on", "off")]
    version = re.search(r"llama_cpp_python-([0-9.]+)", "\n".join(map(str, PROGRAM.parents[2].glob("*.tar.gz"))))
    report = peer.Report(
        "engine", "llama.cpp", f"of llama-cpp-python {version[1].rstrip('.') if version else 'unknown'}",
        {"geometry": name, **sizes, "parameters": parameters, "dtype": dtype, "prompt_tokens": options.prompt,
         "new_tokens": options.new},
        options.json, options.threads, "native")
    for batch in options.batch:
        prefill, decode = (max(runs, key=statistics.median) for runs in zip(*(way[batch] for way in ways)))
        case = f"{name}, batch {batch}"
        report.add(case, "decode", "tokens/s", decode)
        report.add(case, "prefill", "tokens/s", prefill)


if __name__ == "__main__":
    peer.main(measure)
