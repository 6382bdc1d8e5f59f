"""What the peers share: the geometries, the flags, and rows in the JSON form of bench/README.md.

Standard library only, so that compare.py runs with any python3.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import sys

# The sizes of bench/core/geometry.cc, under the names that the rows of Tailrace have.
GEOMETRIES = {
    "tiny": {"layers": 4, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 384, "vocab": 512},
    "small": {"layers": 8, "hidden": 512, "heads": 8, "kv_heads": 2, "ffn": 1408, "vocab": 8192},
    "grid": {"layers": 3, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 192, "vocab": 44},
    "medium": {"layers": 24, "hidden": 896, "heads": 14, "kv_heads": 2, "ffn": 4864, "vocab": 151936},
}


class Mistake(Exception):
    """A person must mend something: one message, exit status 2."""


class WrongResult(Exception):
    """What is fast and wrong is no result: exit status 1."""


class Parser(argparse.ArgumentParser):
    """Flags as the benches have them, and errors as they print them."""

    def __init__(self, purpose, example):
        super().__init__(description=purpose, epilog=f"Example:\n  {example}", allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument("--json", action="store_true", help="one JSON object a row instead of a table")

    def measures(self, geometries=tuple(GEOMETRIES), models=True):
        """The flags of what measures by itself."""
        self.add_argument("--threads", type=positive, default=2, help="threads to measure with [2]")
        choice = self.add_mutually_exclusive_group()
        choice.add_argument("--geometry", choices=geometries, default="tiny", help="the model [tiny]")
        if models:
            choice.add_argument("--model", metavar="FOLDER", help="the folder of a model instead")

    def error(self, message):
        raise Mistake(f"{message}\n       Run '{self.prog} --help'.")


def positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return int(text)


def cpu_name():
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return ""


def peak_memory_mb():
    """The most memory that this process has had resident, in 10^6 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1.024e-3


def chosen_model(options):
    """The name that rows have, and the sizes."""
    if not options.model:
        return options.geometry, GEOMETRIES[options.geometry]
    folder = pathlib.Path(options.model).resolve()
    try:
        config = json.loads((folder / "config.json").read_text())
    except OSError as error:
        raise Mistake(f"{options.model} is not the folder of a model: {error}") from error
    names = {"layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
             "kv_heads": "num_key_value_heads", "ffn": "intermediate_size", "vocab": "vocab_size"}
    return folder.name, {name: config[key] for name, key in names.items()}


class Report:
    """Prints each row as it comes: a line of a table, or one JSON object."""

    def __init__(self, bench, system, version, settings, as_json, threads=None, numerics=""):
        self.heading = {"bench": bench, "system": system, "version": version}
        self.settings = settings
        self.machine = {"device": "cpu", "cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)),
                        "numerics": numerics, "threads": threads}
        self.as_json = as_json
        self.case = None
        if not as_json:
            known = ", ".join(f"{name} {value}" for name, value in settings.items())
            print(f"{bench}: {system} {version} on {self.machine['cpu']}\n{known}\n")
            print(f"{'':24} {'median':>11} {'min':>11} {'max':>11}  {'unit':10} {'runs':>5}", flush=True)

    def add(self, case, metric, unit, values):
        row = self.heading | {
            "case": case, "metric": metric, "unit": unit, "median": statistics.median(values),
            "min": min(values), "max": max(values), "runs": len(values), "limit": None,
            "settings": self.settings, "machine": self.machine}
        if self.as_json:
            print(json.dumps(row), flush=True)
            return
        if case != self.case:
            print(case)
        self.case = case
        numbers = " ".join(f"{row[key]:>11.5g}" for key in ("median", "min", "max"))
        print(f"  {metric:22} {numbers}  {unit:10} {row['runs']:>5}", flush=True)


def torch_model(options, max_positions, seed=0):
    """A folder's model, or a Llama of random weights with tied embeddings, in float32; its name; what describes it."""
    import torch
    from transformers import AutoModelForCausalLM

    name, sizes = chosen_model(options)
    torch.manual_seed(seed)
    if options.model:
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, attn_implementation="sdpa",
                                                     local_files_only=True)
    else:
        model = random_llama(sizes, max_positions)
    parameters = sum(p.numel() for p in model.parameters())
    return model, name, {"geometry": name, **sizes, "parameters": parameters}


def random_llama(sizes, max_positions):
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(
        hidden_size=sizes["hidden"], num_hidden_layers=sizes["layers"], num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["kv_heads"], intermediate_size=sizes["ffn"], vocab_size=sizes["vocab"],
        max_position_embeddings=max_positions, tie_word_embeddings=True, attn_implementation="sdpa",
        bos_token_id=1, eos_token_id=2, pad_token_id=0))


def main(measure):
    """Runs measure() and turns what it raises into one message and an exit status."""
    try:
        measure()
    except Mistake as mistake:
        sys.stdout.flush()
        print(f"error: {mistake}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as missing:
        print(f"error: {missing}\n       Run 'bench/peers/setup.sh', and this with build/peers/bin/python.",
              file=sys.stderr)
        sys.exit(2)
    except WrongResult as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        sys.exit(1)
