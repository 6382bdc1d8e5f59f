"""The module of the wheel, with programs of a few lines in the place of the binary."""
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import tailrace  # noqa: E402


class ModuleTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.addCleanup(os.environ.pop, "TAILRACE_BINARY", None)
        os.environ.pop("TAILRACE_BINARY", None)

    def program(self, script):
        path = self.folder / "program"
        path.write_text(script)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        os.environ["TAILRACE_BINARY"] = str(path)

    def rows(self, *lines):
        (self.folder / "metrics.jsonl").write_text("".join(lines))

    def mistake(self, call, *arguments, **named):
        with self.assertRaises(tailrace.TailraceError) as caught:
            call(*arguments, **named)
        return str(caught.exception)

    def test_a_launch_says_its_config_overrides_and_folder(self):
        self.program(f"#!{sys.executable}\nimport json, sys\n"
                     f"open({str(self.folder / 'said')!r}, 'w').write(json.dumps(sys.argv[1:]))\n")
        run = tailrace.launch("a.yaml", "run.steps=2", {"optim.lr": 1e-5, "eval.pool": None},
                              {"model.path": pathlib.Path("/m"), "run.name": "x y", "a.b": True},
                              run_dir=self.folder / "run")
        self.assertEqual(run.wait(), 0)
        self.assertEqual(run.poll(), 0)
        self.assertEqual(run.dir, self.folder / "run")
        self.assertEqual(json.loads((self.folder / "said").read_text()),
                         ["launch", "a.yaml", "run.steps=2", "optim.lr=1e-05", "eval.pool=null",
                          'model.path="/m"', 'run.name="x y"', "a.b=true", "--run-dir",
                          str(self.folder / "run")])
        self.assertIn("a config", self.mistake(tailrace.launch))
        self.assertIn("section.key=value", self.mistake(tailrace.launch, "a.yaml", "steps"))

    def test_a_run_fails_ends_and_is_ended(self):
        self.program("#!/bin/sh\nexit 2\n")
        run = tailrace.launch("a.yaml", run_dir=self.folder)
        self.assertIn("exit status 2", self.mistake(run.wait))
        self.assertEqual(run.wait(check=False), 2)
        self.program("#!/bin/sh\nexec sleep 100\n")
        run = tailrace.launch("a.yaml", output=subprocess.DEVNULL)
        self.assertIsNone(run.poll())
        with self.assertRaises(subprocess.TimeoutExpired):
            run.wait(timeout=0)
        run.terminate()
        self.assertEqual(run.wait(check=False), -signal.SIGTERM)
        run.terminate()
        with tailrace.launch("a.yaml") as run:
            pass
        self.assertEqual(run.poll(), -signal.SIGTERM)

    def test_a_binary_that_is_not_here_is_named(self):
        self.assertIn("no binary for this machine", self.mistake(tailrace.launch, "a.yaml"))
        os.environ["TAILRACE_BINARY"] = str(self.folder / "none")
        self.assertIn(str(self.folder / "none"), self.mistake(tailrace.binary))
        self.program("no program")
        self.assertIn("does not start on this machine", self.mistake(tailrace.launch, "a.yaml"))

    def test_rows_are_read_as_far_as_they_are_whole(self):
        self.rows('{"step":0,"version":0,"eval/reward":0.5}\n',
                  '{"step":1,"version":0,"reward/mean":0.25,"policy/kl":null}\n',
                  '{"step":2,"version":1,"reward/mean":0.75}\n', '{"step":3,"rew')
        self.assertEqual(len(tailrace.metrics(self.folder)), 3)
        self.assertEqual(tailrace.curve(self.folder, "reward/mean"), ([1, 2], [0.25, 0.75]))
        self.assertIn("near names are reward/mean",
                      self.mistake(tailrace.curve, self.folder, "rewards/mean"))
        self.assertIn("no row", self.mistake(tailrace.curve, self.folder, "policy/kl"))

    def test_what_holds_no_metrics_is_named(self):
        self.assertIn("no metrics.jsonl", self.mistake(tailrace.metrics, self.folder))
        self.assertIn("no run directory", self.mistake(tailrace.metrics, self.folder / "none"))
        for line in ("{\n", "[]\n", '{"step":"1"}\n', "\n", "\xff\n"):
            self.rows('{"step":1}\n', line)
            self.assertIn("metrics.jsonl:2: damaged", self.mistake(tailrace.metrics, self.folder))


if __name__ == "__main__":
    unittest.main()
