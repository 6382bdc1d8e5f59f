#!/usr/bin/env python3
"""Sends the metrics of a run to trackio, also while it trains.

    pip install trackio
    python3 scripts/trackers/to_trackio.py RUN [--space USER/SPACE] [--project P] [--name N]
                                               [--offline] [--once]

Without --space it writes trackio's own database (TRACKIO_DIR), which `trackio show` shows; with
--offline one in RUN/trackers/trackio.
"""
import os
import uuid

from run_rows import State, fail, read_arguments, read_config, send_rows


def main():
    arguments = read_arguments("trackio", __doc__, lambda parser: parser.add_argument(
        "--space", help="a Space of Hugging Face that keeps the runs"))
    if arguments.offline:
        if arguments.space:
            fail("--offline and --space exclude each other")
        # Read when the package is imported.
        os.environ["TRACKIO_DIR"] = str((arguments.folder / "trackio").resolve())
    try:
        import trackio
    except ImportError:
        fail("Python has no trackio; install it with `pip install trackio`")
    place = arguments.space or os.environ.get("TRACKIO_DIR", "the default folder")
    state = State(arguments.folder, arguments.tracker, f"{place}, {arguments.project}")
    is_first = state.id is None
    if is_first:
        # trackio finds a run by its name, and another run directory may have the same one.
        state.id = f"{arguments.name}-{uuid.uuid4().hex[:4]}"
    trackio.init(project=arguments.project, name=state.id, space_id=arguments.space, resume="allow",
                 config=read_config(arguments.run) if is_first else None, embed=False,
                 auto_log_gpu=False, auto_log_cpu=False)

    state.save()

    def send(row, values, _):
        trackio.log(values, step=int(row["step"]))

    send_rows(arguments, state, send)
    trackio.finish()
    state.save(is_over=True)


if __name__ == "__main__":
    main()
