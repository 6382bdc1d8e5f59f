"""Compares the logits of an adapter's folder in peft and in Tailrace.

    build/peers/bin/python bench/peers/peft_logits.py build/tailrace runs/NAME/checkpoints/step_000100

Loads the base and the adapter with transformers and peft in float32, scores the same random token
ids with both, and prints the largest difference of a logit and of a log-probability. Where the base
is bfloat16, its values are the same in both, and products are of float32. --merged: a folder of
`tailrace model merge --dtype f32` is compared too, by transformers alone. Ends with status 1 where a
log-probability differs by more than 1e-3.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

TOLERANCE = 1e-3


def sequences(vocab, longest, seed=0):
    draw = random.Random(seed)
    return [[draw.randrange(vocab) for _ in range(n)] for n in (2, 17, min(longest, 120))]


def ours(binary, folder, rows):
    with tempfile.TemporaryDirectory() as scratch:
        file = pathlib.Path(scratch) / "logits.safetensors"
        text = "".join(json.dumps({"input_ids": row}) + "\n" for row in rows)
        subprocess.run([binary, "model", "score", "--model", folder, "--device", "cpu", "--compute", "f32",
                        "--logits", file], input=text, text=True, check=True,
                       stdout=subprocess.DEVNULL)
        return load_file(file)["logits"].float().split([len(row) for row in rows])


def theirs(model, rows):
    model = model.float().eval()
    with torch.no_grad():
        return [model(torch.tensor([row])).logits[0].float() for row in rows]


def difference(a, b, rows):
    vocab = min(a[0].shape[1], b[0].shape[1])
    logit = max((x[:, :vocab] - y[:, :vocab]).abs().max().item() for x, y in zip(a, b))
    logprob = 0.0
    for x, y, row in zip(a, b, rows):
        chosen = torch.tensor(row[1:])[:, None]
        of = [torch.log_softmax(z[:-1, :vocab], -1).gather(1, chosen) for z in (x, y)]
        logprob = max(logprob, (of[0] - of[1]).abs().max().item())
    return logit, logprob


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("adapter")
    parser.add_argument("--merged")
    arguments = parser.parse_args()
    config = json.loads((pathlib.Path(arguments.adapter) / "adapter_config.json").read_text())
    base = AutoModelForCausalLM.from_pretrained(config["base_model_name_or_path"], dtype=torch.float32)
    rows = sequences(base.config.vocab_size, base.config.max_position_embeddings)
    without = theirs(base, rows)
    want = theirs(PeftModel.from_pretrained(base, arguments.adapter), rows)
    moved, _ = difference(without, want, rows)
    print(f"the adapter moves a logit by up to {moved:.3g}")
    worst = 0.0
    pairs = [("tailrace against peft", ours(arguments.binary, arguments.adapter, rows))]
    if arguments.merged:
        merged = AutoModelForCausalLM.from_pretrained(arguments.merged, dtype=torch.float32)
        pairs.append(("merged by tailrace, in transformers, against peft", theirs(merged, rows)))
    for name, got in pairs:
        logit, logprob = difference(got, want, rows)
        worst = max(worst, logprob)
        print(f"{name}: logits differ by up to {logit:.3g}, log-probabilities by {logprob:.3g}")
    if worst > TOLERANCE or moved < 10 * TOLERANCE:
        sys.exit(f"the largest difference is {worst:.3g}; {TOLERANCE:g} is allowed")


if __name__ == "__main__":
    main()
