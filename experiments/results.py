"""What is in results/*.jsonl, as the tables and claims read it."""
import math
import os

import runner


WANTED = ("commit", "machine", "date")
KINDS = {"train": ("parameters", "curve", "measures"), "command": ("output",)}


class Results:
    """Rows of one experiment whose settings are those of its config: a row of older settings is not shown."""

    def __init__(self, name, folder=runner.RESULTS):
        self.name = name
        self.config = runner.read_config(os.path.join(runner.HERE, name + ".json"))
        self.runs = {run["name"]: run for run in self.config["runs"]}
        self.rows = []
        for row in runner.read_results(os.path.join(folder, name + ".jsonl")):
            run = self.runs.get(row["run"])
            if run is None or row["fingerprint"] != runner.fingerprint_of(self.config, run, row["seed"]):
                continue
            lacking = [key for key in WANTED + KINDS[self.config["kind"]] if key not in row]
            if lacking:
                raise runner.Failure(f"{os.path.join(folder, name)}.jsonl: run {row['run']}, seed {row['seed']} has no {lacking[0]}")
            self.rows = [r for r in self.rows if (r["run"], r["seed"]) != (row["run"], row["seed"])] + [row]

    def of(self, run):
        return sorted((r for r in self.rows if r["run"] == run), key=lambda r: r["seed"])

    def expected(self):
        return sum(len(run.get("seeds", self.config.get("seeds", [1]))) for run in self.runs.values()
                   if not run.get("full_size"))

    def where(self):
        """Machine, commit and date of the rows, for the line below a table."""
        machines = sorted({f"{r['machine']['cpu']}, tier {r['machine']['isa']}, {r['machine']['threads']} threads"
                           for r in self.rows})
        commits = sorted({r["commit"] for r in self.rows})
        dates = sorted({r["date"][:10] for r in self.rows})
        notes = sorted({r["note"] for r in self.rows if r.get("note")})
        text = "; ".join(machines) + "; commit " + ", ".join(commits) + "; " + " to ".join(
            dict.fromkeys((dates[0], dates[-1])))
        return text + ("; " + "; ".join(notes) if notes else "")

    def state(self):
        missing = self.expected() - len(self.rows)
        if not self.rows:
            return "**Not yet run.**"
        return f"**Partial:** {len(self.rows)} of {self.expected()} runs." if missing else ""


def at(row, path):
    """at(row, "measures.test.loss"), None where it is missing."""
    for key in path.split("."):
        if not isinstance(row, dict) or key not in row:
            return None
        row = row[key]
    return row


def mean(values):
    return sum(values) / len(values)


def slope(points):
    """Least squares of log y on log x."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    middle_x, middle_y = mean(xs), mean(ys)
    return (sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys)) / sum((x - middle_x) ** 2 for x in xs))


def spread(values, form):
    """The mean, and in brackets the least and the largest of several seeds."""
    if not values:
        return "-"
    text = form.format(mean(values))
    return text if len(values) == 1 else f"{text} ({form.format(min(values))} to {form.format(max(values))})"


def table(head, rows, left=1):
    """Markdown; the first `left` columns are text."""
    out = ["| " + " | ".join(head) + " |", "|" + "|".join(["---"] * left + ["---:"] * (len(head) - left)) + "|"]
    return "\n".join(out + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows])


# ---- Language modelling ---------------------------------------------------------------------------------------------

def per_token(row, part):
    loss = at(row, f"measures.{part}.loss")
    return None if loss is None else math.exp(loss)


def per_word(row, part):
    """WikiText counts an <eos> a line as a word."""
    loss, data = at(row, f"measures.{part}.loss"), at(row, f"measures.{part}_data")
    return None if loss is None or not data else math.exp(loss * data["tokens"] / (data["text_words"] + data["text_lines"]))


def bits_per_byte(row, part):
    loss, data = at(row, f"measures.{part}.loss"), at(row, f"measures.{part}_data")
    return None if loss is None or not data else loss * data["tokens"] / data["text_bytes"] / math.log(2.0)


def each(rows, function, *arguments):
    return [v for v in (function(row, *arguments) for row in rows) if v is not None]


# ---- Systems --------------------------------------------------------------------------------------------------------

BASE = 64  # tokens of the call whose peak memory counts as that of the program itself


def bench_rows(results, run):
    """Rows of a gma bench op run by length, without the base. memory: the growth of the resident set over it; allocated: what
    the call is given, tensors, scratch and what is saved for backward (not known here for mamba's tensors)."""
    rows = results.of(run)
    if not rows:
        return {}
    output = rows[-1]["output"]
    base = next((r["peak_rss_bytes"] for r in output if r["length"] == BASE), None)
    return {r["length"]: {**r, "memory": r["peak_rss_bytes"] - base if base else None, "allocated": allocated(r)}
            for r in output if r["length"] != BASE}


def allocated(r):
    if r.get("mixer") in (None, "mamba"):
        return None
    numbers = 4 * r["heads"] * r["dim"] * r["length"]  # q, k, v, o
    numbers += 2 * r["components"] * r["length"] if r["mixer"] == "linformer" else 0
    return 4 * numbers * (2 if r["pass"] == "fwdbwd" else 1) + r["workspace_bytes"]


def slope_of(results, run, key):
    points = [(n, r[key]) for n, r in bench_rows(results, run).items() if r.get(key) and r[key] > 0]
    return slope(points) if len(points) > 2 else None
