#!/usr/bin/env python3
"""Runs two programs that print rows, ours and a peer, alternately, and prints the ratio pair by pair.

A name without a slash is a bench of Tailrace or a peer of this folder; with one it is the path of a program, so that
a bench of another build can stand on either side. What follows -- goes to both. Rows are compared that both have;
a ratio above 1 says that A is better, by its rate, its time or its memory. The two take turns in going first.
`others` is the share of the machine that other processes took meanwhile; a pair in which it is large says little and
is run again.
"""
import json
import os
import pathlib
import resource
import shlex
import statistics
import subprocess
import sys
import time

import peer

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def command_of(name):
    words = shlex.split(name)
    if "/" in words[0]:
        return words
    script = HERE / f"{words[0]}.py"
    if script.exists():
        python = ROOT / "build" / "peers" / "bin" / "python"
        if not python.exists():
            raise peer.Mistake(f"the peer {words[0]} needs its environment.\n       Run 'bench/peers/setup.sh'.")
        return [str(python), str(script), *words[1:]]
    return [str(ROOT / "build" / "tailrace"), "bench", *words]


def cpu_seconds():
    """Of all processes of the machine (and what the host took), and of our children that have ended."""
    with open("/proc/stat") as stat:
        ticks = [int(word) for word in stat.readline().split()[1:9]]
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK"), children.ru_utime + children.ru_stime


class Watch:
    """The share of the machine that others take while it runs."""

    def __init__(self):
        self.time, (self.all, self.ours) = time.monotonic(), cpu_seconds()

    def others(self):
        every, ours = cpu_seconds()
        capacity = (time.monotonic() - self.time) * os.cpu_count()
        return min(1.0, max(0.0, (every - self.all) - (ours - self.ours)) / capacity)


def wait_until_quiet(patience):
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        watch = Watch()
        time.sleep(2)
        if watch.others() < 0.05:
            return


def run(command):
    """Its rows by case, metric and unit."""
    done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        words = shlex.join(command)
        raise peer.Mistake(f"'{words}' ended with {done.returncode}:\n       {done.stderr.strip()[-2000:]}")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    if not rows:
        raise peer.Mistake(f"'{shlex.join(command)}' printed no rows")
    return {(row["case"], row["metric"], row["unit"]): row for row in rows}


def check_settings(a, b, may_differ=()):
    """Sizes that both name must be equal: a ratio of two different things is none."""
    for name in ("device", "cpu", "threads"):
        if a["machine"][name] != b["machine"][name]:
            raise peer.Mistake(f"{name} differs: {a['machine'][name]} and {b['machine'][name]}")
    for name in (a["settings"].keys() & b["settings"].keys()) - set(may_differ):
        if a["settings"][name] != b["settings"][name]:
            raise peer.Mistake(f"the setting {name} differs: {a['settings'][name]} and {b['settings'][name]}")


def is_rate(unit):
    return unit.endswith("/s")


def is_cost(unit):
    """Times, and memory."""
    return unit in ("ms", "s", "MB")


def ratio(a, b):
    return a["median"] / b["median"] if is_rate(a["unit"]) else b["median"] / a["median"]


class Pair:
    """One run of each, and the share of the machine that others had in the busier of the two."""

    def __init__(self, commands, number, patience, may_differ):
        self.rows, self.others = [None, None], 0.0
        for side in ((0, 1), (1, 0))[number % 2]:
            wait_until_quiet(patience)
            watch = Watch()
            self.rows[side] = run(commands[side])
            self.others = max(self.others, watch.others())
        check_settings(*self.any_rows(), may_differ)

    def any_rows(self):
        """A row of each: settings and machine are the same in all."""
        return [next(iter(rows.values())) for rows in self.rows]

    def ratio(self, key):
        return ratio(self.rows[0][key], self.rows[1][key])


def run_pairs(commands, options):
    """As many quiet pairs as were asked for, in at most twice as many; else all of them."""
    pairs = []

    def quiet():
        return [pair for pair in pairs if pair.others <= options.max_others]

    while len(quiet()) < options.pairs and len(pairs) < 2 * options.pairs:
        pairs.append(Pair(commands, len(pairs), options.patience, options.may_differ))
        print(f"pair {len(pairs)}: others {pairs[-1].others:.0%}", file=sys.stderr)
    return pairs, quiet() if len(quiet()) == options.pairs else pairs


def print_pairs(key, names, pairs, counted):
    width = max(12, *map(len, names))
    case, metric, unit = key
    print(f"\n{case}, {metric}, {unit}")
    print(f"  {'pair':8} {names[0]:>{width}} {names[1]:>{width}} {'ratio':>8} {'others':>8}")
    for number, pair in enumerate(pairs, 1):
        a, b = (row[key]["median"] for row in pair.rows)
        print(f"  {number:<8} {a:>{width}.5g} {b:>{width}.5g} {pair.ratio(key):>8.2f} {pair.others:>7.0%}"
              + ("" if pair in counted else "  not counted"))
    a, b = (statistics.median(pair.rows[side][key]["median"] for pair in counted) for side in (0, 1))
    middle = statistics.median(pair.ratio(key) for pair in counted)
    print(f"  {'median':8} {a:>{width}.5g} {b:>{width}.5g} {middle:>8.2f}")


def add_pair_flags(parser):
    parser.add_argument("--pairs", type=peer.positive, default=5, help="how often each is run [5]")
    parser.add_argument("--patience", type=int, default=0, metavar="SECONDS",
                        help="wait as long for a quiet machine before each run [0]")
    parser.add_argument("--max-others", type=float, default=0.1, metavar="SHARE",
                        help="a pair is quiet when others take at most this share of the machine [0.1]")


def measure():
    words, both = sys.argv[1:], []
    if "--" in words:
        words, both = words[:words.index("--")], words[words.index("--") + 1:]
    parser = peer.Parser(__doc__, "bench/peers/compare.py train-step torch_train --pairs 5 -- --geometry small")
    parser.add_argument("a", metavar="A", help="a bench, a peer, or the path of a program; its own flags in quotes")
    parser.add_argument("b", metavar="B", help="likewise")
    add_pair_flags(parser)
    parser.add_argument("--may-differ", nargs="+", default=(), metavar="SETTING",
                        help="settings that need not be equal, as the dtype of two who train to one end")
    options = parser.parse_args(words)
    names = (options.a, options.b)
    pairs, counted = run_pairs([command_of(name) + both for name in names], options)
    first = pairs[0].any_rows()
    keys = [key for key in pairs[0].rows[0] if key in pairs[0].rows[1] and (is_rate(key[2]) or is_cost(key[2]))]
    if not keys:
        raise peer.Mistake(f"{names[0]} and {names[1]} have no row in common")

    if options.json:
        report = peer.Report(first[0]["bench"], f"{first[0]['system']} / {first[1]['system']}",
                             f"{first[0]['version']} / {first[1]['version']}", first[0]["settings"], True,
                             first[0]["machine"]["threads"], first[0]["machine"]["numerics"])
        for key in keys:
            report.add(key[0], key[1], "ratio", [pair.ratio(key) for pair in counted])
        return
    for name, row in zip(names, first):
        print(f"{name}: {row['system']} {row['version']}, {row['machine']['numerics']}")
    known = ", ".join(f"{name} {value}" for name, value in first[0]["settings"].items())
    print(f"{first[0]['machine']['cpu']}, {first[0]['machine']['threads']} threads; {known}")
    noisy = sum(pair.others > options.max_others for pair in counted)
    print(f"medians of {len(counted)} pairs" + (f", {noisy} of them beside busy others" if noisy else ""))
    for key in keys:
        print_pairs(key, names, pairs, counted)


if __name__ == "__main__":
    peer.main(measure)
