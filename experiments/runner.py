"""What run.py does: configs, result lines, training runs that stop and go on, commands that print JSON."""
import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import platform
import re
import resource
import signal
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
RESULTS = os.path.join(HERE, "results")


class Failure(Exception):
    pass


class Misuse(Failure):
    """What the command line or a config asks for is not there."""


class Stopped(Exception):
    pass


class Disturbed(Exception):
    pass


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise Failure(f"{path}: {error}") from error


def read_config(path):
    """A config of experiments/, its form checked."""
    config = read_json(path)
    if not isinstance(config, dict) or config.get("kind") not in ("train", "command"):
        raise Misuse(f"{path}: an object with \"kind\": \"train\" or \"command\" is wanted")
    runs = config.get("runs")
    if not isinstance(runs, list) or not runs or any(not isinstance(r, dict) or not isinstance(r.get("name"), str) for r in runs):
        raise Misuse(f"{path}: \"runs\" must be a list of objects with a \"name\", one at least")
    for run in runs:
        if config["kind"] == "command" and not isinstance(run.get("command"), list):
            raise Misuse(f"{path}: run {run['name']}: \"command\" must be a list of arguments")
        if not run.get("seeds", config.get("seeds", [1])):
            raise Misuse(f"{path}: run {run['name']} has no seeds")
    return config


def read_results(path):
    """Lines of a results file. Only a last line without its newline, cut off by a crash, may be broken."""
    lines = []
    if not os.path.exists(path):
        return lines
    try:
        with open(path, "rb") as file:
            texts = file.readlines()
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from error
    for number, text in enumerate(texts, 1):
        try:
            row = json.loads(text)
        except ValueError as error:
            if text.endswith(b"\n"):
                raise Failure(f"{path}:{number}: {error}") from error
            continue
        lacking = [key for key in ("run", "seed", "fingerprint") if not isinstance(row, dict) or key not in row]
        if lacking:
            raise Failure(f"{path}:{number}: a result has no {lacking[0]}")
        lines.append(row)
    return lines


def append_result(path, row):
    """One whole line, on the disk before the next run starts. What a crash left of a line goes first; a whole line that lacks
    only its newline stays."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    ending = b""
    if os.path.exists(path):
        with open(path, "rb+") as file:
            text = file.read()
            begin = text.rfind(b"\n") + 1
            if begin < len(text):
                try:
                    json.loads(text[begin:])
                    ending = b"\n"
                except ValueError:
                    file.truncate(begin)
    with open(path, "ab") as file:
        file.write(ending + json.dumps(row).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def only_here(path):
    """One process at a time: a second one is told who is in the way and changes nothing."""
    with open(path, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Failure(f"{path}: another run.py is at work here") from error
        yield


def cpu_model():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit_of_checkout():
    try:
        name = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True,
                              check=True).stdout.strip()
        dirty = subprocess.run(["git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no"],
                               capture_output=True, text=True, check=True).stdout.strip()
        return name + ("+changes" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def fingerprint(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def check_file(path, sha1):
    digest = hashlib.sha1()
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from error
    if digest.hexdigest() != sha1:
        raise Failure(f"{path}: is not the published file: SHA-1 {digest.hexdigest()}, wanted {sha1}")


def cpu_times():
    """Seconds that all CPUs were busy, seconds our children were, and seconds there were."""
    try:
        with open("/proc/stat", encoding="utf-8") as file:
            ticks = [int(t) for t in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    hertz = os.sysconf("SC_CLK_TCK")
    return ((sum(ticks) - ticks[3] - ticks[4]) / hertz, children.ru_utime + children.ru_stime, sum(ticks) / hertz)


def busy_by_others(before, after):
    """Part of the CPUs that other programs (or another guest of the machine) had; 0 where it is not known."""
    if not before or not after or after[2] <= before[2]:
        return 0.0
    busy, ours, there = (b - a for a, b in zip(before, after))
    return max(0.0, (busy - ours) / there)


def at_terminal():
    """Do the terminal's keys signal this process, and with it its children?"""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def merged(*parts):
    out = {}
    for part in parts:
        out.update(part or {})
    return out


def mark_of(config, settings):
    """The fingerprint of a run: a result of other settings, or of data made in another way, is another run's."""
    made = [step["command"] for step in config.get("prepare", []) if "command" in step]
    return fingerprint({"settings": settings, "prepare": made} if made else settings)


def fingerprint_of(config, run, seed):
    return mark_of(config, settings_of(config, run, seed))


def settings_of(config, run, seed):
    """What a run is told."""
    if config["kind"] == "train":
        return merged(config.get("settings"), run.get("settings"), {"seed": seed})
    return merged({"command": run["command"]}, {"seed": seed} if run.get("seeds") else None)


class Experiment:
    def __init__(self, arguments):
        self.a = arguments
        path = arguments.experiment
        if not path.endswith(".json"):
            path = os.path.join(HERE, path + ".json")
        if not os.path.exists(path) and path == os.path.join(HERE, arguments.experiment + ".json"):
            known = sorted(n[:-5] for n in os.listdir(HERE) if n.endswith(".json"))
            raise Misuse(f"there is no experiment {arguments.experiment}: {', '.join(known)}, or a file NAME.json")
        self.config = read_config(path)
        self.name = os.path.splitext(os.path.basename(path))[0]
        self.results = os.path.join(arguments.results, self.name + ".jsonl")
        self.work = os.path.abspath(arguments.work)
        # gma runs in the root of the checkout; the caller's folder is another one.
        self.data = os.path.abspath(arguments.data) if arguments.data else ""
        self.gma = os.path.abspath(arguments.gma) if os.sep in arguments.gma else arguments.gma
        self.child = None
        self.stopping = 0

    # ---- What there is to do ------------------------------------------------------------------------------------

    def jobs(self):
        """(run, seed), seeds outermost: one seed of everything comes before a second of anything."""
        runs = {run["name"]: run for run in self.config["runs"]}
        names = self.a.runs.split(",") if self.a.runs else [n for n in runs if not runs[n].get("full_size")]
        seeds = self.a.seeds.split(",") if self.a.seeds else None
        if seeds and not all(s.isdigit() for s in seeds):
            raise Misuse(f"--seeds must be whole numbers with commas between, not {self.a.seeds}")
        seeds = [int(s) for s in seeds] if seeds else None
        for name in names:
            if name not in runs:
                raise Misuse(f"{self.name} has no run {name}: {', '.join(runs)}")
        every = seeds or sorted({s for n in names for s in self.seeds_of(runs[n])})
        return [(runs[n], s) for s in every for n in names if seeds or s in self.seeds_of(runs[n])]

    def seeds_of(self, run):
        return run.get("seeds", self.config.get("seeds", [1]))

    def settings(self, run, seed):
        return settings_of(self.config, run, seed)

    def found(self, run, seed, rows):
        """The newest result of these settings, or None."""
        mark = fingerprint_of(self.config, run, seed)
        return next((r for r in reversed(rows) if (r["run"], r["seed"], r["fingerprint"]) == (run["name"], seed, mark)), None)

    def done(self, run, seed, rows):
        return self.found(run, seed, rows) is not None

    # ---- Running ------------------------------------------------------------------------------------------------

    def run(self):
        jobs = self.jobs()
        rows = read_results(self.results)
        if self.a.list:
            for run, seed in jobs:
                print(f"{'done' if self.done(run, seed, rows) else 'open'}  {run['name']}  seed {seed}")
            return 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.stop)
        os.makedirs(self.work, exist_ok=True)
        os.makedirs(os.path.dirname(os.path.abspath(self.results)), exist_ok=True)  # not found out after a long training
        begun, disturbed = time.time(), 0
        try:
            self.prepare()
            for run, seed in jobs:
                row = self.found(run, seed, read_results(self.results))
                if row and not (self.a.measure and self.missing(run, row)):
                    continue
                if self.a.limit and time.time() - begun > self.a.limit:
                    print(f"{self.name}: time is up; the same command goes on from here", flush=True)
                    return 75
                print(f"{self.name}: {run['name']}, seed {seed}", flush=True)
                if row:  # the model is there: only what a later version of the config measures
                    measures = self.measures(run, seed, row["measures"])
                    append_result(self.results, {**row, "measures": measures, "measured": self.a.commit or commit_of_checkout()})
                    continue
                started = time.time()
                row = self.header(run, seed)
                try:
                    row.update(self.train(run, seed) if self.config["kind"] == "train" else self.measure(run, seed))
                except Disturbed as why:
                    print(f"{self.name}: {why}; not kept", flush=True)
                    disturbed += 1
                    continue
                row["seconds"] = round(row.get("seconds") or time.time() - started, 3)
                append_result(self.results, row)
        except Stopped:
            print(f"{self.name}: stopped; the same command goes on from here", flush=True)
            return 128 + self.stopping
        return 75 if disturbed else 0

    def stop(self, number, _frame):
        """Passes the signal on once: a second one ends gma before it has saved, and Ctrl-C reached it already."""
        self.stopping = number
        if self.child is not None and self.child.poll() is None and not (number == signal.SIGINT and at_terminal()):
            self.child.send_signal(number)

    def program(self, arguments, log=None):
        """Runs gma, returns its standard output; a failure names the command and its last line."""
        if self.stopping:
            raise Stopped()
        command = [self.gma, *arguments]
        out = open(log, "a", encoding="utf-8") if log else subprocess.PIPE
        try:
            self.child = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE if not log else out, text=True,
                                          cwd=ROOT)
            text, errors = self.child.communicate()
        except OSError as error:
            raise Failure(f"{self.gma}: {error.strerror}") from error
        finally:
            if log:
                out.close()
        if self.stopping:
            raise Stopped()
        if self.child.returncode not in (0, *self.config.get("codes", [])):
            if log:
                with open(log, encoding="utf-8", errors="replace") as file:
                    errors = file.read()
            last = (errors or "").strip().splitlines()[-1:]
            raise Failure(f"{' '.join(command)}: exit {self.child.returncode}: {' '.join(last)}" + (f" ({log})" if log else ""))
        return text or ""

    def fill(self, text, **more):
        """{data}, {work}, {threads} and what a training run adds, in the arguments of a config."""
        known = {"data": self.data, "work": self.work, "threads": str(self.a.threads), "root": ROOT, **more}
        if "{data}" in text and not self.data:
            raise Failure(f"{text}: --data FOLDER or GMA_DATA is needed")
        return re.sub(r"\{(\w+)\}", lambda m: known[m.group(1)] if m.group(1) in known else m.group(0), text)

    def prepare(self):
        """Data files that are missing or were made in another way; {"check", "sha1"}: a file of the user's that must be the
        published one. prepared.json keeps the commands, with the folders they had."""
        note = os.path.join(self.work, "prepared.json")
        with only_here(os.path.join(self.work, "prepare.lock")):
            made = read_json(note) if os.path.exists(note) else {}
            for step in self.config.get("prepare", []):
                if "check" in step:
                    check_file(self.fill(step["check"]), step["sha1"])
                    continue
                path, command = self.fill(step["makes"]), [self.fill(word) for word in step["command"]]
                if os.path.exists(path) and made.get(path) == command:
                    continue
                self.program(command)
                made[path] = command
                with open(note + ".new", "w", encoding="utf-8") as file:
                    json.dump(made, file, indent=1)
                os.replace(note + ".new", note)

    def header(self, run, seed):
        info = json.loads(self.program(["info", "--json"]))
        settings = self.settings(run, seed)
        row = {"experiment": self.name, "run": run["name"], "seed": seed, "settings": settings,
               "fingerprint": fingerprint_of(self.config, run, seed), "version": info["version"],
               "commit": self.a.commit or commit_of_checkout(),
               "machine": {"cpu": cpu_model(), "isa": info["isa"], "threads": self.a.threads or info["threads"]},
               "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")}
        if self.a.note:
            row["note"] = self.a.note
        return row

    # ---- Training -----------------------------------------------------------------------------------------------

    def train(self, run, seed):
        settings = {k: self.fill(v) if isinstance(v, str) else v for k, v in self.settings(run, seed).items()}
        out = os.path.join(self.work, self.name, f"{run['name']}-s{seed}")
        os.makedirs(out + ".run", exist_ok=True)
        config, log, mark = (os.path.join(out + ".run", name) for name in ("config.json", "log.txt", "fingerprint"))
        wanted = fingerprint_of(self.config, run, seed)
        with only_here(os.path.join(out + ".run", "lock")):
            same = os.path.exists(mark) and open(mark, encoding="utf-8").read() == wanted
            common = ["--out", out, "--threads", str(self.a.threads)]
            if not same or not os.path.exists(os.path.join(out, "last")):
                with open(config, "w", encoding="utf-8") as file:
                    json.dump(settings, file, indent=1)
                with open(mark, "w", encoding="utf-8") as file:
                    file.write(wanted)
                open(log, "w", encoding="utf-8").close()
                self.program(["train", "--config", config, "--force", *common], log)
            elif not trained(out):  # stopped after its last step it has only to be measured
                self.program(["train", "--resume", *common], log)
            facts = self.training_facts(out, log)
            if "parameters" not in facts or not facts["steps"]:
                raise Failure(f"{log}: does not tell of a training; remove {out} to train anew")
            return {**facts, "measures": self.measures(run, seed, {})}

    def steps(self, run):
        """What is measured of the model of a run."""
        mixer = merged(self.config.get("settings"), run.get("settings")).get("mixer")
        return [s for s in run.get("measure", self.config.get("measure", [])) if s.get("mixer", mixer) == mixer]

    def missing(self, run, row):
        return [s for s in self.steps(run) if s["name"] not in row["measures"]]

    def measures(self, run, seed, known):
        out = os.path.join(self.work, self.name, f"{run['name']}-s{seed}")
        made = dict(known)
        for step in self.steps(run):
            if step["name"] not in known:
                text = self.program([self.fill(word, run=out) for word in step["command"]])
                made[step["name"]] = shortened(json.loads(text), step.get("keep"))
        return made

    @staticmethod
    def training_facts(out, log):
        """Parameters, tokens a second (median over steps), seconds of all steps, validation curve."""
        facts, rates, curve, total, last = {}, [], [], 0.0, (0, 0.0, 0)
        with open(log, encoding="utf-8", errors="replace") as file:
            for line in file:
                found = re.match(r"(\d+) parameters", line)
                if found:
                    facts["parameters"] = int(found.group(1))
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
            for line in file:
                entry = json.loads(line)
                if "val_loss" in entry:
                    curve.append([entry["step"], round(entry["val_loss"], 5)])
                    last = (0, 0.0, 0)  # the time of the validation is not that of a step
                elif "loss" in entry:
                    if entry["step"] == last[0] + 1 and entry["seconds"] > last[1]:
                        took = entry["seconds"] - last[1]
                        rates.append((entry["tokens"] - last[2]) / took)
                        total += took
                    last = (entry["step"], entry["seconds"], entry["tokens"])
        rates.sort()
        facts.update(steps=last[0] or (curve[-1][0] if curve else 0), seconds=round(total, 1), curve=curve,
                     tokens_per_second=round(rates[len(rates) // 2], 1) if rates else None)
        return facts

    # ---- Commands that measure ----------------------------------------------------------------------------------

    def measure(self, run, _seed):
        before = cpu_times()
        text = self.program([self.fill(word) for word in run["command"]])
        others = busy_by_others(before, cpu_times())
        if self.a.quiet is not None and others > self.a.quiet:
            raise Disturbed(f"{run['name']}: other programs took {100 * others:.0f} % of the CPUs")
        rows = json.loads(text)
        return {"others": round(others, 4), "output": [shortened(r, self.config.get("keep")) for r in rows] if isinstance(rows, list)
                else shortened(rows, self.config.get("keep"))}


def trained(out):
    """Whether the run in that folder has made its last step."""
    at = os.path.join(out, "last", "trainer.json")
    return read_json(at).get("step", -1) >= read_json(os.path.join(out, "config.json")).get("steps", 0)


def shortened(value, keep):
    """Only the keys that `keep` names, or all but the places of files on this machine; heads of gma inspect are averaged over layers and heads."""
    if isinstance(value, dict) and isinstance(value.get("heads"), list):
        value = inspected(value)
    if not isinstance(value, dict):
        return value
    return {k: v for k, v in value.items() if (k in keep if keep else k not in ("model", "data"))}


def inspected(report):
    heads = report["heads"]

    def mean(key):
        return sum(h[key] for h in heads) / len(heads)

    keys = ("used", "used_queries", "used_keys", "usage_entropy", "effective_components_queries",
            "effective_components_keys", "overlap", "effective_rank")
    out = {"heads": len(heads), "components": heads[0]["components"], "tokens": report["tokens"]}
    out.update({key: round(mean(key), 5) for key in keys})
    out["used_range"] = [min(h["used"] for h in heads), max(h["used"] for h in heads)]
    out["entropy_range"] = [round(f(h["usage_entropy"] for h in heads), 5) for f in (min, max)]
    for kind in heads[0]["against"]:
        rows = [a for h in heads for a in h["against"] if a["labels"] == kind["labels"]]
        out["nmi " + kind["labels"]] = {k: round(sum(r[k] for r in rows) / len(rows), 5)
                                        for k in ("nmi", "nmi_chance", "nmi_above_chance", "purity", "purity_chance")}
    return out
