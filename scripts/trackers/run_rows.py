"""Reads the rows of a run for the scripts beside it, and remembers which of them were sent.

A script gives `send_rows` a function that sends one row. Rows of a living run are sent as they are
written, until its processes are gone. RUN/trackers/NAME.json (NAME-offline.json) holds the run's
id at the tracker and the last row of each kind that was sent, so a script that is started again
goes on behind it. A launch that continues a run writes some steps again; a tracker keeps the first
form of such a step.
"""
import argparse
import contextlib
import fcntl
import json
import math
import os
import pathlib
import signal
import sys
import time

POLL_SECONDS = 2
MAX_ROW_BYTES = 1 << 20


def fail(text):
    sys.exit(f"error: {text}")


def read_arguments(tracker, description, add=None):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("run", type=pathlib.Path, help="the run directory")
    parser.add_argument("--project", default="tailrace", help="of the tracker; default: tailrace")
    parser.add_argument("--name", help="of the run at the tracker; default: that of its directory")
    parser.add_argument("--offline", action="store_true", help="write to files, and use no network")
    parser.add_argument("--once", action="store_true", help="send what is there, and do not wait")
    if add:
        add(parser)
    arguments = parser.parse_args()
    if not arguments.run.is_dir():
        fail(f"there is no run directory {arguments.run}")
    if not (arguments.run / "config.yaml").exists():
        fail(f"{arguments.run} is no run directory: it has no config.yaml")
    arguments.name = arguments.name or arguments.run.resolve().name
    arguments.folder = arguments.run / "trackers"
    arguments.tracker = f"{tracker}-offline" if arguments.offline else tracker
    return arguments


def training_of(row):
    """Of a row of a training on rows its kind: sft, reward_model, preference or distill."""
    for kind in ("reward_model", "preference", "distill"):
        if f"{kind}/loss" in row or f"{kind}/eval_loss" in row:
            return kind
    return "sft"


def kind_of(row):
    """Kinds have steps of their own: a training on rows counts its updates, each stage from 1, and
    evaluations lag behind."""
    if row["version"] < 0:
        training = training_of(row)
        kind = training if f"{training}/loss" in row else f"{training}_eval"
        return f"{kind}_{int(row['stage'])}" if row.get("stage", 1) > 1 else kind
    return "eval" if all(name.startswith("eval/") for name in values_of(row)) else "train"


def values_of(row):
    """The metrics that are numbers. A number that is not finite is null in the file."""
    return {name: value for name, value in row.items()
            if "/" in name and isinstance(value, (int, float)) and math.isfinite(value)}


def read_config(run):
    """The resolved config as {"section.key": value}; {} where there is no PyYAML."""
    try:
        import yaml
    except ImportError:
        return {}
    flat = {}

    def add(prefix, value):
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                add(f"{prefix}.{key}" if prefix else str(key), inner)
        else:
            flat[prefix] = value

    add("", yaml.safe_load((run / "config.yaml").read_text()))
    return flat


class State:
    """The file of what was sent; one process at a time holds it. A tracker that keeps rows in
    memory for a while may lose them when it is killed: a row counts in the file `delay` seconds
    after it was sent, or when all is over."""

    def __init__(self, folder, tracker, target, delay=0):
        self.delay = delay
        self.pending = []  # [(time, sent, count)] that the file does not say yet
        folder.mkdir(exist_ok=True)
        self.path = folder / f"{tracker}.json"
        self.lock = open(folder / f"{tracker}.lock", "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            fail(f"another process sends {folder.parent} to {tracker}")
        try:
            state = json.loads(self.path.read_text())
            self.id, self.sent, self.count = state["id"], state["sent"], state["count"]
            self.target = state["target"]
        except FileNotFoundError:
            self.id, self.sent, self.count, self.target = None, {}, 0, target
        except (ValueError, KeyError, TypeError):
            fail(f"{self.path} is damaged. Remove it to send the run anew, as another one")
        if self.target != target:
            fail(f"{self.path} says that the run was sent to {self.target}, and not to {target}. "
                 "Remove it to send the run there from its first row")
        self.safe = (dict(self.sent), self.count)

    def is_new(self, row):
        return [row["version"], row["step"]] > self.sent.get(kind_of(row), [-2, -1])

    def add(self, row):
        self.sent[kind_of(row)] = [row["version"], row["step"]]
        self.count += 1
        self.pending.append((time.monotonic(), dict(self.sent), self.count))
        self.save()

    def save(self, is_over=False):
        while self.pending and (is_over or time.monotonic() - self.pending[0][0] >= self.delay):
            self.safe = self.pending.pop(0)[1:]
        sent, count = self.safe
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps({"id": self.id, "target": self.target, "sent": sent,
                                     "count": count, "given": self.count}))
        os.replace(fresh, self.path)


class RowReader:
    """The whole lines of a file that grows. A file that was replaced or cut is read from its
    beginning again."""

    def __init__(self, path):
        self.path = path
        self.end = 0  # behind the last whole line
        self.last = b""  # that line
        self.number = 0

    def read(self):
        try:
            with open(self.path, "rb") as file:
                if not self.has_last(file):
                    self.end, self.last, self.number = 0, b"", 0
                file.seek(self.end)
                data = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            fail(f"{self.path}: {error.strerror}")
        *lines, rest = data.split(b"\n")
        if len(rest) > MAX_ROW_BYTES:
            fail(f"{self.path}:{self.number + len(lines) + 1}: a line without an end")
        # One by one: rows before a damaged one are sent.
        for line in lines:
            self.number += 1
            row = self.parse(line)
            self.end += len(line) + 1
            self.last = line
            yield row

    def has_last(self, file):
        start = self.end - len(self.last) - 1
        if self.end == 0:
            return True
        file.seek(start)
        return file.read(len(self.last) + 1) == self.last + b"\n"

    def parse(self, line):
        try:
            row = json.loads(line)
            for key in ("step", "version", "time"):
                if not isinstance(row[key], (int, float)) or not math.isfinite(row[key]):
                    raise ValueError
            return row
        except (ValueError, KeyError, TypeError, RecursionError):
            fail(f"{self.path}:{self.number}: damaged row")


def is_alive(run):
    """Whether a launch of this machine holds the lock of the run. The lock is not touched: a launch
    that begins now would find it taken."""
    try:
        inode = os.stat(run / "lock").st_ino
        locks = pathlib.Path("/proc/locks").read_text().splitlines()
    except OSError:
        return False
    return any("FLOCK" in line and f":{inode} " in line for line in locks)


@contextlib.contextmanager
def saved(state):
    try:
        yield
    except SystemExit:  # a damaged row; those before it are sent
        state.save()
        raise


def send_rows(arguments, state, send):
    """Calls send(row, values, number) for each row that was not sent; `number` counts the rows of
    all launches of the script, from 0. Ctrl-C and SIGTERM end it behind a whole row."""
    def stop(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    reader = RowReader(arguments.run / "metrics.jsonl")
    before = state.count
    with contextlib.suppress(KeyboardInterrupt), saved(state):
        while True:
            # Asked first: the last rows of a run are there when it is over.
            alive = not arguments.once and is_alive(arguments.run)
            for row in reader.read():
                values = values_of(row)
                if values and state.is_new(row):
                    send(row, values, state.count)
                    state.add(row)
            if not alive:
                break
            time.sleep(POLL_SECONDS)
            state.save()
    print(f"sent {state.count - before} rows, {state.count} in all, to {arguments.tracker}")
