"""Launches runs of Tailrace and reads their metrics. It has no dependency.

    run = tailrace.launch("quickstart.yaml", "run.steps=20", run_dir="runs/first")
    run.wait()
    steps, rewards = tailrace.curve("runs/first", "reward/mean")

docs/python.md is its page.
"""
import difflib
import json
import os
import pathlib
import platform
import subprocess

__all__ = ["Run", "TailraceError", "binary", "configs", "curve", "launch", "metrics"]

_DIST = pathlib.Path(__file__).resolve().parent / "dist"


class TailraceError(Exception):
    """A mistake that its reader can mend; its text says how."""


def binary():
    """The path of the program: TAILRACE_BINARY where that is set, else the one of this package."""
    named = os.environ.get("TAILRACE_BINARY")
    path = pathlib.Path(named) if named else _DIST / "bin" / "tailrace"
    if os.access(path, os.X_OK) and path.is_file():
        return path
    if named:
        raise TailraceError(f"TAILRACE_BINARY is {named}, which is no program that may be run")
    raise TailraceError(
        f"this package has no binary for this machine ({platform.system()} {platform.machine()}). "
        "Install a wheel of `make wheel`, or build Tailrace and set TAILRACE_BINARY to its "
        "build/tailrace")


def configs():
    """The folder of the configs that come along (quickstart.yaml and others)."""
    path = _DIST / "share" / "tailrace" / "configs"
    if not path.is_dir():
        raise TailraceError(f"there is no {path}; the configs of a clone are in its folder configs")
    return path


class Run:
    """A launch that is on its way. `dir` is its run directory, or None where `launch` was not told.

    The process goes on when the object is dropped. As a context manager it is terminated at the
    end.
    """

    def __init__(self, process, run_dir):
        self.process = process
        self.dir = run_dir

    @property
    def pid(self):
        return self.process.pid

    def poll(self):
        """The exit status, or None while it runs. Below 0: the signal that ended it."""
        return self.process.poll()

    def wait(self, timeout=None, check=True):
        """Waits for the end; the exit status. TailraceError where it is not 0, unless `check` is
        False; subprocess.TimeoutExpired after `timeout` seconds."""
        status = self.process.wait(timeout)
        if check and status != 0:
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            logs = f"; {self.dir / 'logs'} has the logs of its processes" if self.dir else ""
            raise TailraceError(f"the run ended with {how}. It has printed why{logs}")
        return status

    def terminate(self):
        """Asks for an end with a checkpoint, as Ctrl-C does. `launch` with the same run_dir and
        without a config goes on from there."""
        if self.process.poll() is None:
            self.process.terminate()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.terminate()
        self.process.wait()


def launch(config=None, *overrides, run_dir=None, cwd=None, env=None, output=None):
    """Starts `tailrace launch` and returns its Run at once.

    config     a file, or the name of one of configs(); None goes on with the run of `run_dir`
    overrides  "section.key=value", or dicts of such keys: {"optim.lr": 1e-5, "model.path": path}
    run_dir    folder of the run, relative to the current folder; None: a new one below runs/
    cwd, env   of the process; None: those of this one
    output     a file for what it prints (subprocess.DEVNULL: nowhere); None: where this process
               prints
    """
    command = [str(binary()), "launch"]
    if config is not None:
        command.append(str(_find_config(config, cwd)))
    elif run_dir is None:
        raise TailraceError("launch needs a config, or the run_dir of a run to go on with")
    for override in overrides:
        command += _list_overrides(override)
    if run_dir is not None:
        run_dir = pathlib.Path(run_dir).absolute()
        command += ["--run-dir", str(run_dir)]
    errors = None if output is None else subprocess.STDOUT
    try:
        process = subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=errors)
    except OSError as error:
        machine = f"{platform.system()} {platform.machine()}"
        raise TailraceError(f"{command[0]} does not start on this machine ({machine}): "
                            f"{error.strerror}") from error
    return Run(process, run_dir)


def _find_config(config, cwd):
    path = pathlib.Path(config)
    if (pathlib.Path(cwd or ".") / path).exists():
        return path
    own = _DIST / "share" / "tailrace" / "configs"
    if path.name == str(path) and (own / path).exists():
        return own / path
    return path  # the program says that it is not there


def _list_overrides(override):
    if isinstance(override, str):
        if "=" not in override:
            raise TailraceError(f"an override is section.key=value, and not {override!r}")
        return [override]
    # JSON is YAML; a path is its text.
    return [f"{key}={json.dumps(value, default=os.fspath)}" for key, value in override.items()]


def metrics(run_dir):
    """The rows of metrics.jsonl as dicts, in the order of the file. A number that is not finite is
    None. A last line that is being written is left out."""
    path = pathlib.Path(run_dir) / "metrics.jsonl"
    try:
        data = path.read_bytes()
    except OSError as error:
        if not pathlib.Path(run_dir).is_dir():
            raise TailraceError(f"there is no run directory {run_dir}") from error
        raise TailraceError(f"{run_dir} has no metrics.jsonl that can be read ({error.strerror}): "
                            "it is no run directory, or the run has not begun to train") from error
    rows = []
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get("step"), int):
                raise ValueError("no row of metrics")
        except ValueError as error:
            raise TailraceError(f"{path}:{number}: damaged line ({error})") from error
        rows.append(row)
    return rows


def curve(run_dir, name):
    """(steps, values) of a metric, for a plot. Rows without it are left out.

    The steps of `sft/` metrics are updates of the supervised training."""
    rows = metrics(run_dir)
    points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    if not points:
        names = sorted({key for row in rows for key in row if "/" in key})
        near = difflib.get_close_matches(name, names, n=3)
        hint = f"; near names are {', '.join(near)}" if near else ""
        raise TailraceError(f"no row of {run_dir} has {name}{hint} (docs/metrics.md lists all)")
    return [step for step, _ in points], [value for _, value in points]
