"""experiments/run.py with a model of seconds: what dies or is stopped goes on, and comes to the same numbers.

    test_driver.py build/bin/gma
"""
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GMA = ""

CONFIG = {
    "title": "a test", "kind": "train",
    "settings": {"preset": "tiny", "data": "{root}/data/tinyshakespeare/input.txt", "steps": 8, "warmup": 2, "width": 32,
                 "context": 32, "batch": 2, "eval_every": 4, "eval_windows": 4, "save_every": 1},
    "seeds": [1, 2],
    "runs": [{"name": "gma", "settings": {"mixer": "gma"}}, {"name": "linear", "settings": {"mixer": "linear"}}],
    "measure": [{"name": "valid", "command": ["eval", "{run}", "--data", "{root}/data/tinyshakespeare/input.txt",
                                              "--split", "val", "--windows", "4", "--json"], "keep": ["loss", "tokens"]}],
}

# gma, but the first training dies after its third step.
DIES = """#!/bin/sh
[ "$1" = train ] || exec '{gma}' "$@"
'{gma}' "$@" --stop-at 3
exit 9
"""

# gma, but a training sits there until somebody stops it.
WAITS = """#!/bin/sh
[ "$1" = train ] || exec '{gma}' "$@"
trap 'exit 143' TERM
touch '{folder}/waiting'
while :; do sleep 0.1; done
"""


# gma that can train but not measure.
MEASURES_NOTHING = """#!/bin/sh
[ "$1" = eval ] && exit 7
exec '{gma}' "$@"
"""


class Driver(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = self.temporary.name
        self.results = os.path.join(self.folder, "results", "small.jsonl")
        self.write(CONFIG)

    def tearDown(self):
        self.temporary.cleanup()

    def write(self, config):
        with open(os.path.join(self.folder, "small.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)

    def script(self, text):
        path = os.path.join(self.folder, "gma.sh")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.format(gma=GMA, folder=self.folder))
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def command(self, *more, gma=None, work="work"):
        return [sys.executable, os.path.join(ROOT, "experiments/run.py"), os.path.join(self.folder, "small.json"),
                "--gma", gma or GMA, "--work", os.path.join(self.folder, work), "--results",
                os.path.join(self.folder, "results"), "--threads", "1", "--commit", "abc", *more]

    def run_driver(self, *more, code=0, **options):
        done = subprocess.run(self.command(*more, **options), capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def rows(self):
        if not os.path.exists(self.results):
            return []
        with open(self.results, encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def test_every_run_once(self):
        self.run_driver()
        rows = self.rows()
        self.assertEqual([(r["run"], r["seed"]) for r in rows], [("gma", 1), ("linear", 1), ("gma", 2), ("linear", 2)])
        for row in rows:
            self.assertEqual(row["steps"], 8)
            self.assertEqual([step for step, _ in row["curve"]], [4, 8])
            self.assertEqual(row["commit"], "abc")
            self.assertEqual(row["machine"]["threads"], 1)
            self.assertEqual(row["settings"]["mixer"], row["run"])
            self.assertGreater(row["parameters"], 0)
            self.assertEqual(set(row["measures"]["valid"]), {"loss", "tokens"})
        self.assertEqual(self.run_driver(), "")
        self.assertEqual(self.rows(), rows)

    def test_a_run_that_died_goes_on(self):
        self.run_driver("--runs", "gma", "--seeds", "1", work="whole")
        whole = self.rows()[0]
        os.remove(self.results)
        said = self.run_driver("--runs", "gma", "--seeds", "1", gma=self.script(DIES), code=1)
        self.assertIn("exit 9", said)
        self.assertEqual(self.rows(), [])
        self.run_driver("--runs", "gma", "--seeds", "1")
        with open(os.path.join(self.folder, "work", "small", "gma-s1.run", "log.txt"), encoding="utf-8") as file:
            self.assertIn("resuming after step 3", file.read())
        resumed = self.rows()[0]
        for key in ("settings", "fingerprint", "parameters", "steps", "curve", "measures"):
            self.assertEqual(resumed[key], whole[key], key)

    def test_a_stop_leaves_no_result(self):
        driver = subprocess.Popen(self.command("--runs", "gma", gma=self.script(WAITS)), stdout=subprocess.PIPE, text=True)
        try:
            while not os.path.exists(os.path.join(self.folder, "waiting")):
                self.assertIsNone(driver.poll())
                time.sleep(0.05)
            driver.send_signal(signal.SIGTERM)
            said, _ = driver.communicate()
        finally:
            driver.kill()
        self.assertEqual(driver.returncode, 143)
        self.assertIn("stopped", said)
        self.assertEqual(self.rows(), [])

    def test_what_failed_after_the_training_goes_on(self):
        said = self.run_driver("--runs", "gma", "--seeds", "1", gma=self.script(MEASURES_NOTHING), code=1)
        self.assertIn("exit 7", said)
        self.run_driver("--runs", "gma", "--seeds", "1")
        self.assertEqual([(r["run"], r["steps"]) for r in self.rows()], [("gma", 8)])

    def test_one_at_a_time(self):
        first = subprocess.Popen(self.command("--runs", "gma", gma=self.script(WAITS)), stdout=subprocess.PIPE, text=True)
        kept = os.path.join(self.folder, "work", "small", "gma-s1.run", "config.json")
        try:
            while not os.path.exists(os.path.join(self.folder, "waiting")):
                self.assertIsNone(first.poll())
                time.sleep(0.05)
            before = os.stat(kept)
            self.assertIn("another run.py is at work here", self.run_driver("--runs", "gma", code=1))
            self.assertEqual(os.stat(kept).st_mtime_ns, before.st_mtime_ns)
            first.send_signal(signal.SIGTERM)
            first.communicate()
        finally:
            first.kill()
            first.stdout.close()
        self.assertEqual(first.returncode, 143)

    def test_a_whole_line_without_its_newline_stays(self):
        self.run_driver("--runs", "gma", "--seeds", "1")
        with open(self.results, "rb+") as file:
            file.truncate(os.path.getsize(self.results) - 1)
        self.run_driver("--runs", "linear", "--seeds", "1")
        self.assertEqual([r["run"] for r in self.rows()], ["gma", "linear"])

    def test_other_data_is_another_run(self):
        def recall(pairs):
            made = "{work}/mqar.tokens"
            self.write({"kind": "train", "seeds": [1], "runs": CONFIG["runs"][:1], "prepare": [{"makes": made, "command": [
                "data", "mqar", made, "--sequences", "50", "--length", "16", "--pairs", str(pairs), "--vocab-size", "32"]}],
                "settings": {"preset": "tiny", "tokens": "file", "task": "lm", "data": made, "val_data": made, "width": 16,
                             "context": 16, "batch": 2, "steps": 2, "warmup": 1}})
            self.run_driver()
            info = subprocess.run([GMA, "data", "info", os.path.join(self.folder, "work", "mqar.tokens")], capture_output=True,
                                  text=True, check=True)
            self.assertIn(f"{pairs} pairs", info.stdout)
        recall(2)
        recall(3)
        self.assertEqual(len(self.rows()), 2)

    def test_folders_are_the_callers(self):
        os.makedirs(os.path.join(self.folder, "texts"))
        with open(os.path.join(self.folder, "texts", "t"), "w", encoding="utf-8") as file:
            file.write("to be or not to be " * 100)
        os.symlink(GMA, os.path.join(self.folder, "program"))
        self.write({"kind": "command", "runs": [{"name": "look", "command": ["data", "info", "{data}/t", "--json"]}]})
        done = subprocess.run([*self.command(gma="./program"), "--data", "texts"], cwd=self.folder, capture_output=True,
                              text=True, check=False)
        self.assertIn("texts/t: ", done.stderr)  # what gma says of this file: it was found
        self.assertNotIn("cannot be opened", done.stderr)

    def test_a_line_cut_off_is_replaced(self):
        self.run_driver("--runs", "gma", "--seeds", "1")
        with open(self.results, "a", encoding="utf-8") as file:
            file.write('{"run": "linear", "se')
        self.run_driver("--runs", "linear", "--seeds", "1")
        self.assertEqual([r["run"] for r in self.rows()], ["gma", "linear"])

    def test_other_settings_are_another_run(self):
        self.run_driver("--runs", "gma", "--seeds", "1")
        self.write({**CONFIG, "settings": {**CONFIG["settings"], "steps": 4}})
        self.run_driver("--runs", "gma", "--seeds", "1")
        self.assertEqual([r["steps"] for r in self.rows()], [8, 4])

    def test_what_is_measured_later(self):
        self.run_driver("--runs", "gma", "--seeds", "1")
        before = self.rows()[0]
        step = {"name": "train", "command": ["eval", "{run}", "--data", "{root}/data/tinyshakespeare/input.txt", "--windows", "2",
                                             "--json"], "keep": ["loss"]}
        other = {"name": "never", "mixer": "linear", "command": ["no such verb"]}
        self.write({**CONFIG, "measure": [*CONFIG["measure"], step, other]})
        self.assertEqual(self.run_driver("--runs", "gma", "--seeds", "1"), "")
        self.run_driver("--runs", "gma", "--seeds", "1", "--measure")
        rows = self.rows()
        self.assertEqual(len(rows), 2)
        self.assertEqual(set(rows[1]["measures"]), {"valid", "train"})
        self.assertEqual({**rows[1], "measures": 0, "measured": 0}, {**before, "measures": 0, "measured": 0})
        self.assertEqual(self.run_driver("--runs", "gma", "--seeds", "1", "--measure"), "")

    def test_a_file_that_is_not_the_published_one(self):
        path = os.path.join(self.folder, "text")
        with open(path, "w", encoding="utf-8") as file:
            file.write("abc")
        sums = {"right": "a9993e364706816aba3e25717850c26c9cd0d89d", "wrong": "0" * 40}
        self.write({**CONFIG, "prepare": [{"check": path, "sha1": sums["wrong"]}]})
        self.assertIn(f"{path}: is not the published file", self.run_driver(code=1))
        self.write({**CONFIG, "prepare": [{"check": path, "sha1": sums["right"]}]})
        self.run_driver("--runs", "gma", "--seeds", "1")

    def test_wrong_names_are_told(self):
        self.assertIn("has no run nothing", self.run_driver("--runs", "nothing", code=2))
        self.assertIn("--seeds must be whole numbers", self.run_driver("--seeds", "x", code=2))
        for wrong, why in (([], '"kind"'), ({"kind": "dance"}, '"kind"'), ({"kind": "train"}, '"runs"'),
                           ({"kind": "train", "runs": []}, '"runs"'), ({"kind": "command", "runs": [{"name": "a"}]}, "run a"),
                           ({**CONFIG, "seeds": []}, "no seeds")):
            self.write(wrong)
            said = self.run_driver(code=2)
            self.assertIn("small.json: ", said)
            self.assertIn(why, said)
        self.write({**CONFIG, "settings": {**CONFIG["settings"], "data": "{data}/none"}})
        self.assertIn("--data FOLDER", self.run_driver("--data", "", code=1))

    def test_results_that_are_none(self):
        os.makedirs(os.path.dirname(self.results))
        for text, why in ((b"5\n", "small.jsonl:1: a result has no run"), (b'{"run": "gma", "seed": 1}\n', "has no fingerprint"),
                          (b"\xff\n", "small.jsonl:1: ")):
            with open(self.results, "wb") as file:
                file.write(text)
            said = self.run_driver(code=1)
            self.assertIn(why, said)
            self.assertNotIn("Traceback", said)


if __name__ == "__main__":
    GMA = os.path.abspath(sys.argv.pop(1))
    unittest.main()
