#!/usr/bin/env python3
"""One table of Tailrace and its peers on one real model, SmolLM2-135M-Instruct, and the limits of the machine.

Each row is a median of pairs, as compare.py measures them. A peer that can do the work in several ways (dtype,
compiled or not) does it in each once; the way that was fastest then stands in the pairs. The ways are listed below
the table. A ratio above 1 says that Tailrace is better. A work that Tailrace cannot do yet has the peer's figure alone.
"""
import dataclasses
import functools
import statistics
import sys

import compare
import peer


@dataclasses.dataclass
class Work:
    name: str
    ours: str  # as compare.py names programs; "": Tailrace cannot do it yet
    ways: dict  # the peer's, by what they are called
    rows: list  # (title, end of the case, metric, unit); the first decides which way is best


def works(model, threads, steps):
    common = f" --model {model} --threads {threads}"
    samples = f"{common} --prompt 44 --new 16 --full-length --warmup 1 --steps {steps}"
    trl = {f"TRL, {label}": f"trl_grpo --dtype {flags}{samples}" for label, flags in (
        ("fp32", "fp32"), ("bf16 autocast", "bf16"), ("bf16 weights", "bf16-weights"),
        ("bf16 weights, checkpointing", "bf16-weights --checkpointing"))}
    pairs = f"{common} --warmup 1 --steps {steps}"
    # A second copy of the weights in the place of the computed reference (--live-reference) takes more of both.
    trl_dpo = {f"TRL, {label}": f"trl_dpo --dtype {flags}{pairs}" for label, flags in (
        ("fp32", "fp32"), ("bf16 autocast", "bf16"), ("bf16 weights", "bf16-weights"),
        ("bf16 weights, checkpointing", "bf16-weights --checkpointing"),
        ("bf16 weights, checkpointing, 8 passes", "bf16-weights --checkpointing --accumulate 8"),
        ("bf16 autocast, checkpointing, 8 passes", "bf16 --checkpointing --accumulate 8"))}
    train = f"{common} --sequences 16 --length 128 --steps {steps}"
    return [
        Work("decode", f"engine --batch 1,8,64{common}", {"llama.cpp, bf16": f"llama_cpp --batch 1,8,64{common}"},
             [(f"decode, bf16, context 128, batch {batch}", f", batch {batch}", "decode", "tokens/s")
              for batch in (1, 8, 64)]),
        # llama.cpp has its KV cache in float16.
        Work("decode16", f"engine --kv-cache-dtype bf16 --batch 1,8,64{common}",
             {"llama.cpp, bf16": f"llama_cpp --batch 1,8,64{common}"},
             [(f"the same, KV cache in 16 bits, batch {batch}", f", batch {batch}", "decode", "tokens/s")
              for batch in (1, 8, 64)]),
        Work("prefill", f"engine --batch 1 --prompt 512 --new 16{common}",
             {"llama.cpp, bf16": f"llama_cpp --batch 1 --prompt 512 --new 16{common}"},
             [("prefill, bf16, 512 tokens", ", batch 1", "prefill", "tokens/s")]),
        Work("q8", "", {"llama.cpp, Q8_0": f"llama_cpp --dtype q8_0 --batch 1{common}"},
             [("decode, 8 bits, context 128, batch 1", ", batch 1", "decode", "tokens/s")]),
        Work("train", f"train-step{train}",
             {f"PyTorch, {dtype}{', compiled' if compiled else ''}": f"torch_train --dtype {dtype}{compiled}{train}"
              for dtype in ("fp32", "bf16") for compiled in ("", " --compile")},
             [("training step, 16 x 128 tokens", "", "step", "ms")]),
        Work("grpo", f"rl-step{samples}", trl,
             [("GRPO step, 64 samples of 44 + 16 tokens", "", "step", "ms"),
              ("peak memory of that step", "", "peak memory", "MB")]),
        Work("memory", f"rl-step{samples} --recompute --microbatch 1024", trl,
             [("peak memory of a GRPO step, least", "", "peak memory", "MB"),
              ("that step", "", "step", "ms")]),
        Work("dpo", f"dpo-step{pairs}", trl_dpo,
             [("DPO step, 16 pairs of 128 + 64 tokens", "", "step", "ms"),
              ("peak memory of that step", "", "peak memory", "MB"),
              ("log-probabilities of the reference, 16 pairs", "", "reference", "ms"),
              ("loss of the first update's pairs at the end", "", "first pairs at the end", "nats")]),
        # Two pairs a pass: 2 x (128 + 64 + 65) tokens.
        Work("dpo-memory", f"dpo-step{pairs} --recompute --microbatch 514", trl_dpo,
             [("peak memory of a DPO step, least", "", "peak memory", "MB"),
              ("that step", "", "step", "ms"),
              ("loss of the first update's pairs at the end", "", "first pairs at the end", "nats")])]


def key_of(rows, row):
    _, case, metric, unit = row
    for key in rows:
        if key[0].endswith(case) and key[1:] == (metric, unit):
            return key
    raise peer.Mistake(f"no row {metric} in {unit}")


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def last_words(mistake):
    return " ".join(text.strip() for text in str(mistake).splitlines()[-2:])


def say(text):
    print(text, file=sys.stderr, flush=True)


@functools.cache
def rows_of(command):
    """Two works may have the same ways."""
    return compare.run(compare.command_of(command))


def try_ways(work, notes):
    """The rows of each way of the peer that ran, the best first."""
    ran = {}
    for way, command in work.ways.items():
        say(f"{work.name}: {way}")
        try:
            rows = rows_of(command)
            ran[way] = [rows[key_of(rows, row)] for row in work.rows]
        except peer.Mistake as mistake:
            say(f"{way} did not run: {mistake}")
            notes.append(f"- {way} did not run: {last_words(mistake)}")
    best = sorted(ran, key=lambda way: ran[way][0]["median"], reverse=compare.is_rate(work.rows[0][3]))
    if len(ran) > 1:
        for way in best:
            figures = ", ".join(f"{row['metric']} {number(row['median'])} {row['unit']}" for row in ran[way])
            notes.append(f"- {way}, run once: {figures}")
    return best


def line(title, unit, ours, theirs, ratio, way, others):
    return f"| {title} | {unit} | {ours} | {theirs} | {ratio} | {way} | {others:.0%} |"


def measure_alone(work, way, options):
    runs, others = [], []
    for _ in range(options.pairs):
        compare.wait_until_quiet(options.patience)
        watch = compare.Watch()
        runs.append(compare.run(compare.command_of(work.ways[way])))
        others.append(watch.others())
    for row in work.rows:
        theirs = statistics.median(rows[key_of(rows, row)]["median"] for rows in runs)
        yield line(row[0], row[3], "none yet", number(theirs), "", way, statistics.median(others))


def measure_pairs(work, way, options):
    commands = [compare.command_of(work.ours), compare.command_of(work.ways[way])]
    _, counted = compare.run_pairs(commands, options)
    for row in work.rows:
        key = key_of(counted[0].rows[0], row)
        ours, theirs = (statistics.median(pair.rows[side][key]["median"] for pair in counted) for side in (0, 1))
        ratio = statistics.median(pair.ratio(key) for pair in counted)
        others = statistics.median(pair.others for pair in counted)
        yield line(row[0], row[3], number(ours), number(theirs), f"{ratio:.2f}", way, others)


def limits(threads):
    rows = compare.run(compare.command_of(f"kernels --only machine --threads {threads}"))
    first = next(iter(rows.values()))
    known = ", ".join(f"{row['metric']} {number(row['median'])} {row['unit']}" for row in rows.values())
    return f"{first['machine']['cpu']}, {threads} threads. Limits: {known}."


def print_table(chosen, options):
    """True: every work was measured."""
    notes, whole = [], True
    print("| work | unit | Tailrace | peer | ratio | peer is | others |\n| --- | --- | --- | --- | --- | --- | --- |",
          flush=True)
    for work in chosen:
        try:
            best = try_ways(work, notes) if len(work.ways) > 1 else list(work.ways)
            if not best:
                raise peer.Mistake("no way of the peer ran")
            for text in (measure_pairs if work.ours else measure_alone)(work, best[0], options):
                print(text, flush=True)
        except peer.Mistake as mistake:
            whole = False
            say(f"{work.name}: {mistake}")
            notes.append(f"- {work.name} was not measured: {last_words(mistake)}")
    if notes:
        print("\n" + "\n".join(notes))
    return whole


def measure():
    names = [work.name for work in works("", 1, 1)]
    parser = peer.Parser(__doc__, "bench/peers/smollm2.py --pairs 5 --patience 60 > table.md")
    parser.add_argument("--model", default=str(compare.ROOT / "models" / "smollm2"), metavar="FOLDER",
                        help="that of scripts/smollm2.sh [models/smollm2]")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="some of the works")
    parser.add_argument("--threads", type=peer.positive, default=2, help="threads to measure with [2]")
    parser.add_argument("--steps", type=peer.positive, default=3,
                        help="measured steps of a run of train, grpo and dpo [3]")
    compare.add_pair_flags(parser)
    options = parser.parse_args()
    options.may_differ = ["dtype"]
    print(f"{limits(options.threads)} Medians of {options.pairs} pairs.\n")
    if not print_table([work for work in works(options.model, options.threads, options.steps)
                        if work.name in options.only], options):
        sys.exit(1)


if __name__ == "__main__":
    peer.main(measure)
