"""Peer of `tailrace bench engine`: llama.cpp's own llama-batched-bench on a model of the same geometry.

The weights are random, in fp32, as is the KV cache. Each row is of flash attention or of none, whichever was faster.
llama-batched-bench feeds random ids and samples nothing, which is less work than the bench does: Tailrace draws each
token and computes its log-probability.
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
PROMPT, NEW = 64, 64


def write_gguf(path, sizes):
    """A Llama without lm_head (its embeddings are tied) and without a tokenizer."""
    import gguf
    import numpy

    draw = numpy.random.default_rng(1)
    hidden, ffn, head_dim = sizes["hidden"], sizes["ffn"], sizes["hidden"] // sizes["heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(sizes["layers"])
    writer.add_context_length(PROMPT + NEW)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(sizes["heads"])
    writer.add_head_count_kv(sizes["kv_heads"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(sizes["vocab"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("no_vocab")
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
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return count


def numbers(text):
    return [peer.positive(word) for word in text.split(",")]


def run(model, options, flash_attention):
    """Tokens/s of llama-batched-bench, (prefill, decode) by batch size; one run of each is left out, to warm up."""
    batches = [batch for batch in options.batch for _ in range(options.runs + 1)]
    command = [PROGRAM, "-m", model, "-c", max(batches) * (PROMPT + NEW), "-b", 2048, "-ub", 512, "-ctk", "f32",
               "-ctv", "f32", "-fa", flash_attention, "-t", options.threads, "-tb", options.threads,
               "-npp", PROMPT, "-ntg", NEW, "-npl", ",".join(map(str, batches)), "--output-format", "jsonl"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    lines = re.findall(r"^\{.*\}$", done.stdout + done.stderr, re.MULTILINE)
    if done.returncode != 0 or len(lines) != len(batches):
        raise peer.Mistake("llama-batched-bench failed: " + "\n       ".join(done.stderr.splitlines()[-5:]))
    rows = [json.loads(line) for line in lines]
    return {batch: [[row[key] for row in rows if row["pl"] == batch][1:] for key in ("speed_pp", "speed_tg")]
            for batch in options.batch}


def measure():
    parser = peer.Parser(__doc__, "build/peers/bin/python bench/peers/llama_cpp.py --geometry small --batch 1,64")
    parser.measures()
    parser.add_argument("--batch", type=numbers, default=[1, 8, 64, 128], help="decoded together [1,8,64,128]")
    parser.add_argument("--runs", type=peer.positive, default=5, help="measured runs of each batch size [5]")
    options = parser.parse_args()
    if not PROGRAM.exists():
        raise peer.Mistake("llama.cpp is not built.\n       Run 'bench/peers/setup.sh llama'.")
    sizes = peer.GEOMETRIES[options.geometry]
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "model.gguf"
        parameters = write_gguf(model, sizes)
        ways = [run(model, options, flash_attention) for flash_attention in ("on", "off")]
    version = re.search(r"llama_cpp_python-([0-9.]+)", "\n".join(map(str, PROGRAM.parents[2].glob("*.tar.gz"))))
    report = peer.Report(
        "engine", "llama.cpp", f"of llama-cpp-python {version[1].rstrip('.') if version else 'unknown'}",
        {"geometry": options.geometry, **sizes, "parameters": parameters, "dtype": "fp32", "prompt_tokens": PROMPT,
         "new_tokens": NEW},
        options.json, options.threads, "native")
    for batch in options.batch:
        prefill, decode = (max(runs, key=statistics.median) for runs in zip(*(way[batch] for way in ways)))
        case = f"{options.geometry}, batch {batch}"
        report.add(case, "decode", "tokens/s", decode)
        report.add(case, "prefill", "tokens/s", prefill)


if __name__ == "__main__":
    peer.main(measure)
