#!/usr/bin/env python3
"""Sends the metrics of a run to MLflow, also while it trains.

    pip install mlflow-skinny        # or mlflow
    python3 scripts/trackers/to_mlflow.py RUN [--uri URI] [--project P] [--name N] [--offline]
                                              [--once]

The server is --uri, or else MLFLOW_TRACKING_URI. With --offline it writes RUN/trackers/mlruns,
which `mlflow ui --backend-store-uri RUN/trackers/mlruns` shows. --project is MLflow's experiment.
"""
import os

from run_rows import State, fail, is_alive, read_arguments, read_config, send_rows

try:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException
except ImportError:
    fail("Python has no mlflow; install it with `pip install mlflow-skinny`")

MAX_PARAMS = 100  # of a batch


def create_run(client, arguments):
    experiment = client.get_experiment_by_name(arguments.project)
    experiment_id = (experiment.experiment_id if experiment
                     else client.create_experiment(arguments.project))
    run_id = client.create_run(experiment_id, run_name=arguments.name).info.run_id
    params = [Param(key, str(value)[:500]) for key, value in read_config(arguments.run).items()]
    for begin in range(0, len(params), MAX_PARAMS):
        client.log_batch(run_id, params=params[begin:begin + MAX_PARAMS])
    return run_id


def main():
    arguments = read_arguments("mlflow", __doc__, lambda parser: parser.add_argument(
        "--uri", help="of the server; default: MLFLOW_TRACKING_URI"))
    uri = arguments.uri or os.environ.get("MLFLOW_TRACKING_URI")
    if arguments.offline:
        uri = (arguments.folder / "mlruns").resolve().as_uri()
        # Newer versions of MLflow ask for that before they write files.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    elif not uri:
        fail("there is no server: give --uri, set MLFLOW_TRACKING_URI, or use --offline")
    state = State(arguments.folder, arguments.tracker, f"{uri}, {arguments.project}")
    client = MlflowClient(tracking_uri=uri)
    try:
        if state.id is None:
            state.id = create_run(client, arguments)
            state.save()
        client.update_run(state.id, status="RUNNING")

        def send(row, values, _):
            time = int(row["time"] * 1000)
            client.log_batch(state.id, metrics=[Metric(name, value, time, int(row["step"]))
                                                for name, value in values.items()])

        send_rows(arguments, state, send)
        if not is_alive(arguments.run):
            client.set_terminated(state.id)
    except MlflowException as error:
        fail(f"MLflow at {uri}: {error}. What was sent stays; start the script again to go on")


if __name__ == "__main__":
    main()
