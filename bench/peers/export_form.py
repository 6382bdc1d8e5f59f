"""Holds an export of Tailrace against the model that the run began with, in transformers.

    build/peers/bin/python bench/peers/export_form.py MODEL EXPORT [--same-weights]

MODEL is the folder of `model.path`; EXPORT is a checkpoint of the run, or a folder of `tailrace
weights export`. Compared are the files (shards, the tensors in each, their shapes and dtypes, the
metadata), the keys of config.json and the other files of the folder. Then transformers loads both,
by its defaults and with dtype="auto": the names and dtypes of the parameters, whether embeddings
are tied, and what it says is missing or unexpected must be the same. --same-weights, for an export
of version 0: every tensor has the same bytes, and the logits are equal bit for bit; without it the
largest difference of a logit is printed. Ends with status 1 where something differs.
"""
import argparse
import json
import pathlib
import random
import sys

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

INDEX = "model.safetensors.index.json"
# What Tailrace puts beside a model in a checkpoint.
CHECKPOINT = {"master.safetensors", "optimizer.safetensors", "critic.safetensors", "state.json"}


def files_of(folder):
    index = folder / INDEX
    if (folder / "model.safetensors").exists() or not index.exists():
        return ["model.safetensors"]
    return sorted(set(json.loads(index.read_text())["weight_map"].values()))


def tensors_of(folder):
    """{(file, name): tensor}, and the metadata of each file."""
    tensors, metadata = {}, {}
    for file in files_of(folder):
        with safe_open(folder / file, framework="pt") as opened:
            metadata[file] = opened.metadata()
            for name in opened.keys():
                if not name.endswith("rotary_emb.inv_freq"):
                    tensors[file, name] = opened.get_tensor(name)
    return tensors, metadata


def weight_map(folder):
    index = folder / INDEX
    return json.loads(index.read_text())["weight_map"] if index.exists() else None


def loaded(folder, **arguments):
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **arguments)
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    facts = {"dtype of the model": model.dtype,
             "dtypes": {name: p.dtype for name, p in model.named_parameters()},
             "tied": head.data_ptr() == embedding.data_ptr(),
             "said while loading": {k: sorted(map(str, v)) for k, v in info.items()}}
    return model.eval(), facts


def logits(model, rows):
    with torch.no_grad():
        return [model(torch.tensor([row])).logits[0].float() for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("export", type=pathlib.Path)
    parser.add_argument("--same-weights", action="store_true")
    arguments = parser.parse_args()
    differences = []

    def compare(what, before, after):
        same = before == after
        print(f"{what}: {'as in the model' if same else 'DIFFERENT'}")
        if not same:
            differences.append(f"{what}: {before} became {after}"[:2000])

    (before, before_metadata), (after, after_metadata) = map(
        tensors_of, (arguments.model, arguments.export))
    compare(f"{len(before)} tensors in {len(before_metadata)} files",
            sorted(before), sorted(after))
    compare("index", weight_map(arguments.model), weight_map(arguments.export))
    form = lambda tensors: {key: (t.dtype, tuple(t.shape)) for key, t in tensors.items()}
    compare("dtypes and shapes", form(before), form(after))
    # A file may come without metadata; what is written has a format, as transformers wants.
    compare("metadata", {file: {"format": "pt"} for file in after_metadata}, after_metadata)
    compare("config.json", *(json.loads((folder / "config.json").read_text())
                             for folder in (arguments.model, arguments.export)))
    others = lambda folder: {p.name: p.read_bytes() for p in folder.iterdir()
                             if p.is_file() and p.suffix in (".json", ".jinja", ".txt", ".model")
                             and p.name not in CHECKPOINT | {"config.json", INDEX}}
    compare("other files", others(arguments.model), others(arguments.export))
    if arguments.same_weights:
        compare("bytes of the tensors",
                {key: True for key in before},
                {key: key in before and before[key].dtype == t.dtype and
                 torch.equal(before[key].flatten().view(torch.uint8), t.flatten().view(torch.uint8))
                 for key, t in after.items()})

    draw = random.Random(0)
    for name, options in (("by default", {}), ("dtype=auto", {"dtype": "auto"})):
        (first, want), (second, got) = (loaded(folder, **options)
                                        for folder in (arguments.model, arguments.export))
        for fact in want:
            compare(f"{name}, {fact}", want[fact], got[fact])
        print(f"{name}: loaded as {got['dtype of the model']}")
        rows = [[draw.randrange(first.config.vocab_size) for _ in range(n)] for n in (2, 17, 60)]
        a, b = logits(first, rows), logits(second, rows)
        if arguments.same_weights:
            compare(f"{name}, logits", True, all(map(torch.equal, a, b)))
        else:
            apart = max((x - y).abs().max().item() for x, y in zip(a, b))
            print(f"{name}: logits differ by up to {apart:.3g}, as training has moved them")
    if differences:
        sys.exit("\n".join(differences))


if __name__ == "__main__":
    main()
