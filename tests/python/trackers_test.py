"""scripts/trackers: what is read of a run that grows, is cut and goes on, and what arrives at each
tracker that this Python has, offline."""
import contextlib
import fcntl
import importlib.util
import io
import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import types
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "trackers"
sys.path.insert(0, str(SCRIPTS))
import run_rows  # noqa: E402


def line(step, version, **values):
    row = {"step": step, "version": version, "time": 1000.5 + step, **values, "proof": "ab"}
    return json.dumps(row) + "\n"


def sft(step):
    return line(step, -1, **{"sft/loss": 10.0 + step})


def train(step, reward=None):
    return line(step, step - 1, **{"reward/mean": step if reward is None else reward,
                                   "policy/kl": None})


def evaluation(step):
    return line(step, step, **{"eval/reward": step / 8})


WARM_UP = sft(1) + sft(2) + evaluation(0)


class TrackersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_dir = pathlib.Path(folder.name) / "run"
        self.run_dir.mkdir()
        (self.run_dir / "config.yaml").write_text("run: {steps: 3}\noptim: {lr: 0.5}\n")
        self.metrics = self.run_dir / "metrics.jsonl"

    def append(self, text):
        with open(self.metrics, "a") as file:
            file.write(text)

    # The rows that a script would send now, each as (kind, step), with the state in `folder`.
    def sent_now(self, target="t"):
        arguments = types.SimpleNamespace(run=self.run_dir, once=True, tracker="fake")
        state = run_rows.State(self.run_dir / "trackers", "fake", target)
        rows = []
        with contextlib.redirect_stdout(io.StringIO()):
            run_rows.send_rows(arguments, state, lambda row, values, number: rows.append(
                (run_rows.kind_of(row), row["step"], number)))
        state.lock.close()
        return rows


class RowsTest(TrackersTest):
    def test_each_row_is_sent_once(self):
        self.append(WARM_UP + train(1))
        self.assertEqual(self.sent_now(), [("sft", 1, 0), ("sft", 2, 1), ("eval", 0, 2),
                                           ("train", 1, 3)])
        self.append(train(2)[:20])
        self.assertEqual(self.sent_now(), [])
        self.append(train(2)[20:] + evaluation(1))
        self.assertEqual(self.sent_now(), [("train", 2, 4), ("eval", 1, 5)])

    def test_stages_count_their_updates_each_from_1(self):
        pairs = line(1, -1, **{"preference/loss": 0.7, "rewards/margins": 0.1, "stage": 3})
        held_out = line(0, -1, **{"preference/eval_loss": 0.7, "stage": 3})
        scores = line(1, -1, **{"reward_model/loss": 0.7, "stage": 2})
        taught = line(1, -1, **{"distill/loss": 0.7, "stage": 4})
        self.append(sft(1) + sft(2) + scores + held_out + pairs + taught)
        self.assertEqual(self.sent_now(), [("sft", 1, 0), ("sft", 2, 1), ("reward_model_2", 1, 2),
                                           ("preference_eval_3", 0, 3), ("preference_3", 1, 4),
                                           ("distill_4", 1, 5)])

    def test_steps_that_are_done_again_keep_their_first_form(self):
        self.append(WARM_UP + train(1) + train(2))
        self.sent_now()
        self.metrics.write_text(WARM_UP + train(1) + train(2, reward=7) + train(3))
        self.assertEqual(self.sent_now(), [("train", 3, 5)])

    def test_a_reader_sees_a_file_that_was_cut_or_replaced(self):
        reader = run_rows.RowReader(self.metrics)
        self.assertEqual(list(reader.read()), [])
        self.append(train(1) + train(2))
        self.assertEqual([row["step"] for row in reader.read()], [1, 2])
        self.assertEqual(list(reader.read()), [])
        self.append(train(3))
        self.assertEqual([row["step"] for row in reader.read()], [3])
        self.metrics.write_text(train(1))
        self.assertEqual([row["step"] for row in reader.read()], [1])
        # Longer than what was read, with other rows.
        self.metrics.write_text(train(1, reward=99) + train(2, reward=99) + train(3))
        self.assertEqual([row["step"] for row in reader.read()], [1, 2, 3])

    def test_mistakes_are_named(self):
        self.append(train(1) + "[]\n")
        with self.assertRaisesRegex(SystemExit, "metrics.jsonl:2: damaged row"):
            self.sent_now()
        # What stands before it was sent.
        self.metrics.write_text(train(1) + train(2))
        self.assertEqual(self.sent_now(), [("train", 2, 1)])
        with self.assertRaisesRegex(SystemExit, "was sent to t, and not to u"):
            self.sent_now("u")
        state = run_rows.State(self.run_dir / "trackers", "other", "t")
        with self.assertRaisesRegex(SystemExit, "another process sends"):
            run_rows.State(self.run_dir / "trackers", "other", "t")
        state.lock.close()
        (self.run_dir / "trackers" / "fake.json").write_text("{")
        with self.assertRaisesRegex(SystemExit, "fake.json is damaged"):
            self.sent_now()

    def test_a_run_lives_while_its_lock_is_held(self):
        self.assertFalse(run_rows.is_alive(self.run_dir))
        with open(self.run_dir / "lock", "w") as lock:
            self.assertFalse(run_rows.is_alive(self.run_dir))
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertTrue(run_rows.is_alive(self.run_dir))
        self.assertFalse(run_rows.is_alive(self.run_dir))


class ArrivalTest(TrackersTest):
    """Each tracker follows a run that lives, is killed, is started again, and ends with the run."""

    def script(self, name):
        return [sys.executable, "-B", str(SCRIPTS / f"to_{name}.py"), str(self.run_dir),
                "--offline"]

    def state(self, name):
        try:
            return json.loads((self.run_dir / "trackers" / f"{name}-offline.json").read_text())
        except FileNotFoundError:
            return {"given": 0}

    def wait_for(self, name, count):
        for _ in range(600):
            if self.state(name)["given"] >= count:
                return
            time.sleep(0.1)
        self.fail(f"{name} did not come to row {count}: {self.state(name)}")

    def follow(self, name):
        if not importlib.util.find_spec(name):
            self.skipTest(f"this Python has no {name}")
        self.append(WARM_UP + train(1))
        with open(self.run_dir / "lock", "w") as lock, open(self.run_dir / "said", "w") as said:
            fcntl.flock(lock, fcntl.LOCK_EX)
            first = subprocess.Popen(self.script(name), stdout=said, stderr=said)
            self.wait_for(name, 4)
            self.append(train(2))
            self.wait_for(name, 5)
            # trackio writes its rows twice a second.
            time.sleep(2)
            first.send_signal(signal.SIGKILL)
            first.wait()
            self.metrics.write_text(WARM_UP + train(1) + train(2) + evaluation(2))
            second = subprocess.Popen(self.script(name), stdout=said, stderr=said)
            self.wait_for(name, 6)
            self.append(train(3))
        self.assertEqual(second.wait(), 0, (self.run_dir / "said").read_text())
        third = subprocess.run(self.script(name), capture_output=True, text=True)
        self.assertIn("sent 0 rows, 7 in all", third.stdout, third.stderr)
        self.assertEqual(self.state(name)["count"], 7)

    def expect_points(self, points):
        self.assertEqual(sorted(points), sorted([
            ("sft/loss", 1, 11), ("sft/loss", 2, 12), ("eval/reward", 0, 0),
            ("reward/mean", 1, 1), ("reward/mean", 2, 2), ("eval/reward", 2, 0.25),
            ("reward/mean", 3, 3)]))

    def test_mlflow_has_each_row(self):
        self.follow("mlflow")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient
        client = MlflowClient(tracking_uri=(self.run_dir / "trackers" / "mlruns").as_uri())
        run = client.get_run(self.state("mlflow")["id"])
        self.assertEqual(run.info.status, "FINISHED")
        self.assertEqual(run.info.run_name, "run")
        self.assertEqual(run.data.params["optim.lr"], "0.5")
        self.expect_points([(name, point.step, point.value) for name in run.data.metrics
                            for point in client.get_metric_history(run.info.run_id, name)])

    def test_trackio_has_each_row(self):
        self.follow("trackio")
        database = sqlite3.connect(self.run_dir / "trackers" / "trackio" / "tailrace.db")
        rows = database.execute("select run_name, step, metrics from metrics").fetchall()
        self.assertEqual({name for name, _, _ in rows}, {self.state("trackio")["id"]})
        self.expect_points([(name, step, value) for _, step, values in rows
                            for name, value in json.loads(values).items()])
        database.close()

    def test_wandb_has_each_row(self):
        self.follow("wandb")
        # As if it had been killed after its rows were written, and before it could note that.
        path = self.run_dir / "trackers" / "wandb-offline.json"
        path.write_text(json.dumps({**self.state("wandb"), "sent": {"sft": [-1, 1]}, "count": 1}))
        subprocess.run(self.script("wandb"), capture_output=True, check=True)
        from wandb.proto import wandb_internal_pb2
        from to_wandb import records_of
        points, ids, configs, rows = [], set(), set(), []
        for file in (self.run_dir / "trackers" / "wandb").glob("offline-run-*/*.wandb"):
            for data in records_of(file.read_bytes()):
                record = wandb_internal_pb2.Record()
                record.ParseFromString(data)
                if record.HasField("run"):
                    ids.add(record.run.run_id)
                    configs |= {item.key or ".".join(item.nested_key)
                                for item in record.run.config.update}
                if record.HasField("history"):
                    rows.append({item.key or "/".join(item.nested_key):
                                 json.loads(item.value_json) for item in record.history.item})
        for row in rows:
            step = row["sft/step" if "sft/loss" in row else "train/step"]
            points += [(name, step, value) for name, value in row.items()
                       if "/" in name and not name.endswith("/step")]
        self.assertEqual(ids, {self.state("wandb")["id"]})
        self.assertIn("optim.lr", configs)
        self.assertEqual(sorted(row["_step"] for row in rows), list(range(7)))
        self.expect_points(points)


if __name__ == "__main__":
    unittest.main()
