#!/usr/bin/env python3
"""Compares the losses of two runs exactly, step by step: exit status 0 when they agree, 1 with the first difference when not.

usage: hf_resume_check.py WANT GOT [--from STEP] [--to STEP]

A step that a file has more than once (a run killed after it and resumed before it) counts with its last line; a torn last line counts
as absent. Every step of the range must be in both files. Without a range it is the steps of GOT.
"""

import argparse
import json
import sys


def read(path):
    losses = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                row = json.loads(line)
                losses[row["step"]] = row["loss"]
    return losses


def compare(want, got, steps):
    """Returns the first difference in words, or None."""
    for step in steps:
        if step not in want or step not in got:
            return f"step {step}: missing in {'WANT' if step not in want else 'GOT'}"
        if want[step] != got[step]:
            return f"step {step}: want loss {want[step]!r}, got {got[step]!r}"
    return None


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("want")
    parser.add_argument("got")
    parser.add_argument("--from", type=int, dest="first")
    parser.add_argument("--to", type=int, dest="last")
    options = parser.parse_args(argv)
    want, got = read(options.want), read(options.got)
    if not got:
        return "GOT has no steps"
    first = min(got) if options.first is None else options.first
    last = max(got) if options.last is None else options.last
    if first > last:
        return f"no steps from {first} to {last}"
    difference = compare(want, got, range(first, last + 1))
    if difference is None:
        print(f"steps {first} to {last} agree")
    return difference


if __name__ == "__main__":
    difference = main(sys.argv[1:])
    if difference is not None:
        print(difference)
        sys.exit(1)
