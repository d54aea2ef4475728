"""experiments/report.py on results made up here: figures, verdicts, and that it sees a document that lags behind."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "experiments"))
sys.dont_write_bytecode = True

import claims  # noqa: E402
import results as module  # noqa: E402
import runner  # noqa: E402
import tables  # noqa: E402


def row(name, run, seed, **more):
    config = runner.read_json(os.path.join(runner.HERE, name + ".json"))
    settings = runner.settings_of(config, next(r for r in config["runs"] if r["name"] == run), seed)
    return {"experiment": name, "run": run, "seed": seed, "settings": settings, "fingerprint": runner.mark_of(config, settings),
            "version": "0", "commit": "abc", "machine": {"cpu": "a cpu", "isa": "scalar", "threads": 1},
            "date": "2026-01-02T03:04:05Z", "seconds": 1.0, **more}


def bench(mixer, power, pass_="fwd", form="causal"):
    """A run of gma bench op whose memory, over 1 MB of the program, and time go with N to that power."""
    return row("systems", f"{mixer}-{pass_}-{form}", 1, output=[
        {"length": n, "median_ms": (n / 1024) ** power, "peak_rss_bytes": 10 ** 6 + (0 if n == 64 else int(n ** power)),
         "mixer": mixer, "pass": pass_, "heads": 1, "dim": 1, "components": 1, "workspace_bytes": 4 * (int(n ** power) - 4 * n)}
        for n in (64, 4096, 8192, 16384)])


def model(run, seed, loss):
    return row("lm", run, seed, parameters=1000, curve=[[1, loss]], measures={
        "valid": {"loss": loss}, "test": {"loss": loss}, "test_data": {"tokens": 300, "text_words": 90, "text_lines": 10,
                                                                       "text_bytes": 600}})


class Report(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = self.temporary.name

    def tearDown(self):
        self.temporary.cleanup()

    def results(self, *rows):
        for line in rows:
            runner.append_result(os.path.join(self.folder, line["experiment"] + ".jsonl"), line)
        return {n: module.Results(n, self.folder) for n in
                ("lm", "systems", "verify", "ablation", "mqar", "mqar-16-pairs", "lra-listops", "lra-text")}

    def verdicts(self, *rows):
        made = self.results(*rows)
        return {claim[0]: (claim[3], claim[4]) for _, part in claims.rows(made) for claim in part}

    def test_slopes(self):
        said = self.verdicts(bench("gma", 1.0), bench("mha", 1.0))
        memory = said["Memory grows linearly with N at fixed K"]
        self.assertEqual(memory, ("fwd-causal 1.000; resident set 1.000", "holds (partial: 1 of 4)"))
        self.assertIn("does not hold", said["Attention that stores all scores needs memory quadratic in N"][1])
        said = self.verdicts(bench("gma", 1.06), bench("mha", 2.0))
        self.assertIn("does not hold", said["Memory grows linearly with N at fixed K"][1])
        self.assertIn("holds", said["Time grows linearly with N at fixed K"][1])
        self.assertTrue(said["Attention that stores all scores needs memory quadratic in N"][1].startswith("holds"))

    def test_orders_compare_the_same_seeds(self):
        name = "GMA is better than the tested linear and random-feature attention"
        self.assertEqual(self.verdicts()[name], ("-", "not yet run"))
        said = self.verdicts(model("gma-k256", 1, 4.0), model("linear", 1, 4.1), model("linear", 2, 3.0))
        self.assertEqual(said[name][1], "holds (1 seed) (partial: 1 of 4)")
        said = self.verdicts(model("gma-k256", 2, 3.5))
        self.assertEqual(said[name][1], "**does not hold** (2 seeds) (partial: 1 of 4)")

    def test_perplexities(self):
        made = self.results(model("linear", 1, 2.0))
        text = tables.lm(made["lm"])
        line = next(t for t in text.splitlines() if t.startswith("| linear"))
        cells = [c.strip() for c in line.split("|")]
        self.assertEqual(cells[4:9], ["7.39", "7.39", "-", "403.4", "1.4427"])  # e^2; 2 * 300 / 100; 2 * 300 / 600 / ln 2
        self.assertIn("**Partial:** 1 of 36 runs.", text)
        self.assertIn("a cpu, tier scalar, 1 threads; commit abc; 2026-01-02", text)

    def test_components_matter(self):
        def recalled(run, accuracy):
            return row("mqar", run, 1, parameters=1, curve=[], measures={"test": {"accuracy": accuracy, "accuracy_low": 0, "accuracy_high": 1}})

        what = "The same for recall (4 pairs, one head)"
        self.assertEqual(self.verdicts()[what], ("-", "not yet run"))
        said = self.verdicts(recalled("gma-16", 0.25), recalled("gma-64", 0.5))[what]
        self.assertEqual(said, ("K = 16: 25.0%; K = 64: 50.0%", "holds (partial: 2 of 3)"))
        said = self.verdicts(recalled("gma-16", 0.5), recalled("gma-64", 0.5), recalled("gma-256", 0.55))[what]
        self.assertEqual(said[1], "**does not hold**")

    def test_state_of_a_definition(self):
        """What the formulas keep: K (D + 1) a head, keys and values of every token, E S of Mamba."""
        def numbers(experiment, run):
            return tables.state_numbers(row(experiment, run, 1)["settings"])

        self.assertEqual(numbers("mqar", "gma-16"), 2 * 16 * (64 + 1))
        self.assertEqual(numbers("mqar", "performer-16-4-heads"), 2 * 4 * 16 * (16 + 1))
        self.assertEqual(numbers("mqar", "linear"), 2 * 64 * (64 + 1))
        self.assertEqual(numbers("mqar", "linear-4-heads"), 2 * 4 * 16 * (16 + 1))
        self.assertEqual(numbers("mqar", "softmax-4-heads"), 2 * 32 * 2 * 64)
        self.assertEqual(numbers("mqar", "mamba"), 2 * 128 * 16)
        self.assertEqual(numbers("mqar-16-pairs", "softmax"), 2 * 64 * 2 * 64)

    def test_theory(self):
        line = {"engine": "double", "statement": "i", "what": "gamma: sum", "measured": 0.5, "relation": "<=", "bound": 1.0,
                "holds": True}
        worse = {**line, "engine": "avx2", "measured": 2.0, "holds": False}
        told = {**line, "what": "told", "relation": None, "bound": None, "holds": None}
        made = self.results(row("verify", "random", 1, output={"rows": [line, worse, told]}))
        text = tables.verify(made["verify"])
        self.assertIn("| random | (i) gamma: sum | 2 | <= 1 | **violated** by avx2 | double, avx2 |", text)
        self.assertIn("| random | (i) told | 0.5 |  |  | double |", text)
        said = {c[0]: (c[3], c[4]) for _, part in claims.rows(made) for c in part}
        self.assertEqual(said["Responsibilities are non-negative and a token's sum to 1"],
                         ("1 of 2 checks, 2 engines: gamma: sum", "**does not hold**"))
        self.assertEqual(said["Routing is locally stable: a token's responsibilities change by at most L times its move"][1],
                         "not yet run")

    def test_results_of_other_settings_are_not_shown(self):
        old = model("linear", 1, 2.0)
        old["fingerprint"] = "0" * 12
        self.assertEqual(self.results(old)["lm"].rows, [])

    def test_a_document_that_lags_behind_is_seen(self):
        docs = os.path.join(self.folder, "docs")
        os.makedirs(docs)
        shutil.copy(os.path.join(ROOT, "docs/results.md"), docs)
        self.results(model("linear", 1, 2.0))
        command = [sys.executable, "-B", os.path.join(ROOT, "experiments/report.py"), "--results", self.folder, "--docs", docs]
        self.assertEqual(subprocess.run([*command, "--check"], capture_output=True, check=False).returncode, 1)
        self.assertEqual(subprocess.run(command, capture_output=True, check=False).returncode, 0)
        self.assertEqual(subprocess.run([*command, "--check"], capture_output=True, check=False).returncode, 0)
        page = os.path.join(docs, "results.md")
        with open(page, encoding="utf-8") as file:
            text = file.read()
        with open(page, "w", encoding="utf-8") as file:
            file.write(text.replace("| 7.39 |", "| 7.38 |"))
        done = subprocess.run([*command, "--check"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("results.md", done.stdout)
        for begin, end in ((" end lm ", " end ml "), (" begin lm ", " end lm ")):
            with open(page, "w", encoding="utf-8") as file:
                file.write(text.replace(begin, end))
            done = subprocess.run([*command, "--check"], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("lm", done.stderr)
        done = subprocess.run([*command, "--results", os.path.join(self.folder, "none")], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("none: there is no such folder", done.stderr)

    def test_a_row_that_lacks_something(self):
        whole = model("softmax", 1, 3.0)
        self.results(whole)
        del whole["parameters"]
        with self.assertRaisesRegex(runner.Failure, "lm.jsonl: run softmax, seed 1 has no parameters"):
            self.results(whole)

    def test_every_result_line_is_whole(self):
        """The committed results: each has what its table names as its origin."""
        for name in sorted(os.listdir(runner.RESULTS)):
            config = runner.read_config(os.path.join(runner.HERE, name[:-1]))  # NAME.jsonl, NAME.json
            for line in runner.read_results(os.path.join(runner.RESULTS, name)):
                for key in ("experiment", "run", "seed", "settings", "fingerprint", "version", "commit", "machine", "date"):
                    self.assertIn(key, line, name)
                self.assertEqual(line["fingerprint"], runner.mark_of(config, line["settings"]), name)


if __name__ == "__main__":
    unittest.main()
