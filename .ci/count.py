"""Counts the tests in the output of `go test -json`, subtests included.

Prints the output of every test that failed, the name of every one that was skipped, and, as the last line,
"N passed, N failed, N skipped". Ends with status 1 unless some passed, none failed and none was skipped.
"""

import collections
import json
import sys


def main(path):
    output = collections.defaultdict(list)
    count = collections.Counter()
    failed, skipped, broken = [], [], []
    seconds = collections.Counter()
    finished, began = set(), set()
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                broken.append(line.rstrip())
                continue
            action = event["Action"]
            package = event.get("Package") or event.get("ImportPath", "")
            test = event.get("Test")
            key = (package, test)
            if action in ("output", "build-output"):
                output[key].append(event["Output"])
            elif action == "build-fail":
                failed.append(key)
            elif test is None:
                if action in ("pass", "fail", "skip"):
                    seconds[package] = event.get("Elapsed", 0)
                if action == "fail":
                    failed.append(key)
            elif action == "run":
                began.add(key)
            elif action in ("pass", "fail", "skip"):
                finished.add(key)
                count[action] += 1
                if action == "fail":
                    failed.append(key)
                elif action == "skip":
                    skipped.append(key)

    unfinished = began - finished  # a test that took the process down
    for package, test in failed + sorted(unfinished):
        print(f"FAIL {package} {test or ''}".rstrip())
        sys.stdout.writelines("    " + text for text in output[package, test])
    for text in broken:
        print(text)
    for package, test in skipped:
        print(f"SKIP {package} {test}")
        sys.stdout.writelines("    " + text for text in output[package, test])
    for package, spent in seconds.most_common(5):
        print(f"{spent:7.1f} s {package}")
    packages = {package for package, test in failed if test is None}
    told = {package for package, test in failed if test is not None} | {package for package, _ in unfinished}
    fails = count["fail"] + len(unfinished) + len(packages - told)
    print(f"{count['pass']} passed, {fails} failed, {count['skip']} skipped")
    return 0 if count["pass"] and not fails and not count["skip"] and not broken else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
