#!/usr/bin/env python3
"""Writes the tables of docs/results.md, its plots and docs/claims.md from experiments/results/*.jsonl.

    experiments/report.py            # write
    experiments/report.py --check    # compare only; exit 1 and say which file differs

docs/results.md: what stands between <!-- begin NAME --> and <!-- end NAME --> is replaced, the rest is written by hand.
"""
import argparse
import os
import re
import sys

import claims
import runner
import tables
from results import Results


def blocks_of(text, made):
    """The text with its blocks replaced; a block nobody makes, or one without a place, is an error."""
    begun, ended = (sorted(re.findall(rf"<!-- {word} ([\w-]+) -->", text)) for word in ("begin", "end"))
    for found in (begun, ended):
        if found != sorted(made):
            odd = sorted(set(found) ^ set(made)) or found
            raise runner.Failure(f"results.md: its blocks begin with {begun} and end with {ended}; look for {', '.join(odd)}")

    def fill(match):
        return f"<!-- begin {match.group(1)} -->\n\n{made[match.group(1)].strip()}\n\n<!-- end {match.group(1)} -->"

    out, count = re.subn(r"<!-- begin ([\w-]+) -->(?:(?!<!-- begin).)*?<!-- end \1 -->", fill, text, flags=re.S)
    if count != len(made):
        raise runner.Failure("results.md: the end of a block does not follow its beginning")
    return out


def build(results_folder, docs):
    """{path: text} of every file that results decide."""
    if not os.path.isdir(results_folder):
        raise runner.Failure(f"{results_folder}: there is no such folder of results")
    names = [n[:-5] for n in sorted(os.listdir(runner.HERE)) if n.endswith(".json")]
    results = {name: Results(name, results_folder) for name in names}
    with open(os.path.join(docs, "results.md"), encoding="utf-8") as file:
        page = file.read()
    made, plots = tables.build(results)
    files = {"results.md": blocks_of(page, made), "claims.md": claims.build(results)}
    files.update({name + ".svg": text for name, text in plots.items()})
    return {os.path.join(docs, name): text for name, text in files.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with what is there, write nothing")
    parser.add_argument("--results", default=runner.RESULTS, help="folder of NAME.jsonl")
    parser.add_argument("--docs", default=os.path.join(runner.ROOT, "docs"), help="folder of results.md")
    a = parser.parse_args()
    try:
        files = build(a.results, a.docs)
    except runner.Failure as failure:
        sys.exit(f"report.py: {failure}")
    except OSError as error:
        sys.exit(f"report.py: {error.filename}: {error.strerror}")
    stale = []
    for path, text in files.items():
        old = None
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                old = file.read()
        if old != text:
            stale.append(path)
            if not a.check:
                with open(path + ".new", "w", encoding="utf-8") as file:
                    file.write(text)
                os.replace(path + ".new", path)
    for path in stale:
        print(f"{path}: {'is not what the results say: make claims' if a.check else 'written'}")
    sys.exit(1 if a.check and stale else 0)


if __name__ == "__main__":
    main()
