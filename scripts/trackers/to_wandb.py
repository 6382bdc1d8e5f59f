#!/usr/bin/env python3
"""Sends the metrics of a run to Weights & Biases, also while it trains.

    pip install wandb
    python3 scripts/trackers/to_wandb.py RUN [--project P] [--name N] [--offline] [--once]

With --offline it writes RUN/trackers/wandb, which `wandb sync --append` sends later. The x axis of
a training on rows is sft/step, reward_model/step, preference/step or distill/step, and that of all
others train/step.
"""
import uuid

from run_rows import State, fail, read_arguments, read_config, send_rows, training_of

try:
    import wandb
except ImportError:
    fail("Python has no wandb; install it with `pip install wandb`")

# wandb writes and sends what it was given every 15 seconds.
WRITE_SECONDS = 40


def records_of(log):
    """The records of a file of wandb, which has the form of LevelDB's log: blocks of 32 KiB, in
    them pieces with a checksum, a length and a kind (1 whole, 2 first, 3 middle, 4 last)."""
    block, at, record = 1 << 15, 7, b""
    while at + 7 <= len(log):
        if block - at % block < 7:
            at += block - at % block
            continue
        length, kind = int.from_bytes(log[at + 4:at + 6], "little"), log[at + 6]
        record += log[at + 7:at + 7 + length]
        at += 7 + length
        if at > len(log):
            return
        if kind in (1, 4):
            yield record
            record = b""


def next_step_offline(folder, run_id):
    """Behind the last step that an earlier process, which may have been killed, left in its
    files."""
    from wandb.proto import wandb_internal_pb2

    last = -1
    for file in folder.glob(f"wandb/offline-run-*-{run_id}/*.wandb"):
        for data in records_of(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            for item in record.history.item:
                if item.key == "_step" or list(item.nested_key) == ["_step"]:
                    last = max(last, int(item.value_json))
    return last + 1


def main():
    arguments = read_arguments("wandb", __doc__)
    state = State(arguments.folder, arguments.tracker, arguments.project, WRITE_SECONDS)
    if state.id is None:
        state.id = uuid.uuid4().hex[:12]
    first_step = next_step_offline(arguments.folder, state.id) if arguments.offline else 0
    run = wandb.init(project=arguments.project, name=arguments.name, id=state.id, resume="allow",
                     dir=str(arguments.folder), mode="offline" if arguments.offline else "online",
                     config=read_config(arguments.run))
    state.save()
    groups = set()  # whose axis wandb knows

    def send(row, values, number):
        axis = f"{training_of(row)}/step" if row["version"] < 0 else "train/step"
        for group in {name.split("/")[0] for name in values} - groups:
            groups.add(group)
            run.define_metric(f"{group}/*", step_metric=axis)
        # A row that arrived, although its sender was killed before it could note that.
        if number >= max(first_step, run.starting_step):
            run.log({**values, axis: row["step"]}, step=number)

    send_rows(arguments, state, send)
    run.finish()
    state.save(is_over=True)


if __name__ == "__main__":
    main()
