"""Shows how `go test -json` on standard input goes on, and counts its tests, subtests included.

usage: go test -json ... | count.py FILE    shows packages as they end and what failed or was skipped; the count goes to FILE as well
       count.py --sum FILE...               the sum of such files

The last line is "N passed, N failed, N skipped". The status is 1 unless some passed, none failed and none was skipped. What a test says in
a line with NOT PROVEN HERE, because the machine does not allow it, is shown.
"""

import collections
import json
import sys

NOT_HERE = "NOT PROVEN HERE"


class Run:
    """What one `go test` has said so far."""

    def __init__(self):
        self.output = collections.defaultdict(list)
        self.count = collections.Counter()
        self.running = set()
        self.failed_tests = set()
        self.failed_packages = set()
        self.broken = 0

    def line(self, line):
        try:
            event = json.loads(line)
        except ValueError:
            print(line.rstrip())
            self.broken += 1
            return
        action, test = event["Action"], event.get("Test")
        # Of a package with its tests the import path is "p [p.test]".
        package = event.get("Package") or event.get("ImportPath", "").split(" ")[0]
        key = (package, test)
        if action in ("output", "build-output"):
            self.output[key].append(event["Output"])
            if NOT_HERE in event["Output"]:
                print(f"{package} {test or ''}: {event['Output'].strip()}")
        elif action == "build-fail":
            self.fail(key)
        elif test is None:
            self.package(action, key, event.get("Elapsed", 0))
        elif action == "run":
            self.running.add(key)
        elif action in ("pass", "fail", "skip"):
            self.running.discard(key)
            self.count[action] += 1
            if action == "fail":
                self.fail(key)
            elif action == "skip":
                self.show("SKIP", key)
            self.output.pop(key, None)

    def package(self, action, key, seconds):
        if action == "fail":
            self.fail(key)
        elif action == "pass":
            print(f"ok   {key[0]} {seconds:.1f} s")
        if action in ("pass", "fail", "skip"):
            self.output.pop(key, None)
        sys.stdout.flush()

    def fail(self, key):
        self.show("FAIL", key)
        (self.failed_packages if key[1] is None else self.failed_tests).add(key)

    def show(self, what, key):
        print(f"{what} {key[0]} {key[1] or ''}".rstrip())
        sys.stdout.writelines("    " + text for text in self.output[key])
        sys.stdout.flush()

    def end(self):
        """Returns the numbers of tests that passed, failed and were skipped. A package that failed without a test counts as one."""
        for key in sorted(self.running):  # they took the process down, or it them
            self.fail(key)
        told = {package for package, _ in self.failed_tests}
        packages = {package for package, _ in self.failed_packages}
        return self.count["pass"], len(self.failed_tests) + len(packages - told) + self.broken, self.count["skip"]


def result(counts):
    passed, failed, skipped = counts
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if passed and not failed and not skipped else 1


def main(arguments):
    if arguments[0] == "--sum":
        rows = [[int(n) for n in open(path, encoding="utf-8").read().split()] for path in arguments[1:]]
        return result([sum(column) for column in zip(*rows)])
    run = Run()
    sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    for line in sys.stdin:
        run.line(line)
    counts = run.end()
    with open(arguments[0], "w", encoding="utf-8") as file:
        print(*counts, file=file)
    return result(counts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
