#!/usr/bin/env python3
"""Runs an experiment, one result line a run; what is already in the results is not run again.

    experiments/run.py lm                        # experiments/lm.json, every run and seed
    experiments/run.py lm --runs gma-k128,softmax --seeds 1
    experiments/run.py systems --list            # what there is to run and what is done

A run that is stopped (Ctrl-C, SIGTERM) saves itself; the same command goes on from there. Needs only Python's
standard library and the built program.
"""
import argparse
import json
import os
import sys

import runner


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", help="a name (a file of experiments/) or a file NAME.json")
    parser.add_argument("--runs", help="only these, in this order, separated by commas")
    parser.add_argument("--seeds", help="only these seeds, separated by commas")
    parser.add_argument("--list", action="store_true", help="say what there is and what is done, run nothing")
    parser.add_argument("--measure", action="store_true", help="also what finished runs lack, with the models that are there")
    parser.add_argument("--gma", default=os.path.join(runner.ROOT, "build/bin/gma"), help="the program")
    parser.add_argument("--data", default=os.environ.get("GMA_DATA", ""),
                        help="folder with wikitext-2, imdb, listops [default: $GMA_DATA]")
    parser.add_argument("--work", default=os.path.join(runner.ROOT, "runs/experiments"),
                        help="where data files and models go [default: runs/experiments]")
    parser.add_argument("--results", default=runner.RESULTS, help="folder of NAME.jsonl")
    parser.add_argument("--commit", help="of what --gma was built from [default: of this checkout]")
    parser.add_argument("--threads", type=int, default=0, help="0 = every CPU")
    parser.add_argument("--for", type=float, dest="limit", metavar="SECONDS", help="begin no further run after so long")
    parser.add_argument("--quiet", type=float, metavar="X", help="keep no measurement during which other programs had more than "
                        "this part of the CPUs")
    parser.add_argument("--note", help="kept in each result line: what else the machine did")
    try:
        sys.exit(runner.Experiment(parser.parse_args()).run())
    except runner.Failure as failure:
        print(f"run.py: {failure}", file=sys.stderr)
        sys.exit(2 if isinstance(failure, runner.Misuse) else 1)
    except OSError as error:
        print(f"run.py: {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
