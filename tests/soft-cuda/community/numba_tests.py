"""numba-cuda's own tests on the software driver, held against a list of those that are expected to fail.

`numba_tests.py NAME...` runs test modules of `numba.cuda.tests` (such as `cudadrv.test_events`), each in a process of
its own, and compares: a test that fails without being in `numba_expected.txt`, and one that is there and passes, are
both failures. `--record` writes the list instead.
"""

import json
import os
import subprocess
import sys
import unittest

EXPECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "numba_expected.txt")
SECONDS = 240


class Outcomes(unittest.TestResult):
    """The names of tests by how they ended."""

    def __init__(self):
        super().__init__()
        self.ended = {}

    def stopTest(self, test):
        super().stopTest(test)
        self.ended.setdefault(test.id(), "passed")
        # One at a time: what a crash leaves is told as well.
        print("ended", json.dumps([test.id(), self.ended[test.id()]]), flush=True)

    def startTest(self, test):
        super().startTest(test)
        print("started", json.dumps(test.id()), flush=True)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.ended[test.id()] = "failed"

    addError = addFailure

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error:
            self.ended[test.id()] = "failed"

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.ended[test.id()] = "skipped"


def module(name):
    """Runs one module in this process."""
    loader = unittest.defaultTestLoader
    tests = loader.loadTestsFromName(f"numba.cuda.tests.{name}")
    for error in loader.errors:
        # The reason stands in the last line.
        print("error", json.dumps(error.strip().splitlines()[-1]), flush=True)
    if not loader.errors:
        tests.run(Outcomes())


def outcomes(name):
    """The outcomes of a module's tests, run in a process of its own, and why it cannot be imported, if so."""
    command = [sys.executable, "-W", "ignore", __file__, "--module", name]
    try:
        text = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=SECONDS, text=True).stdout
    except subprocess.TimeoutExpired as error:
        text = (error.stdout or b"").decode()
    ended, started, errors = {}, set(), []
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "started":
            started.add(json.loads(rest))
        elif kind == "error":
            errors.append(json.loads(rest))
        elif kind == "ended":
            test, how = json.loads(rest)
            ended[test] = how
    # What was running when the process ended has failed.
    return {test: ended.get(test, "failed") for test in started}, errors


def main(words):
    if words[0] == "--module":
        return module(words[1])
    record = words[0] == "--record"
    names = words[record:]
    expected = set()
    if not record:
        expected = {line.split()[0] for line in open(EXPECTED) if line.strip() and not line.startswith("#")}
    counts, wrong, failed = {}, [], []
    for name in names:
        seen, errors = outcomes(name)
        wrong += [f"{name}: {error}" for error in errors]
        if not seen and not errors:
            wrong.append(f"{name}: no test has run")
        for test, how in sorted(seen.items()):
            counts[how] = counts.get(how, 0) + 1
            failed += [test] if how == "failed" else []
            if how == "failed" and test not in expected:
                wrong.append(f"{test} failed")
            if how == "passed" and test in expected:
                wrong.append(f"{test} passed and is expected to fail: take it off the list")
    print(", ".join(f"{count} {how}" for how, count in sorted(counts.items())))
    if record:
        with open(EXPECTED, "w") as out:
            out.write("# Tests of numba-cuda 0.30.4 that fail on the software driver.\n")
            out.writelines(f"{test}\n" for test in failed)
        return
    print("\n".join(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
