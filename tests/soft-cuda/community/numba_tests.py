"""numba-cuda's own tests on the software driver, held against a list of what is expected to fail.

`numba_tests.py SOFT_CUDA [--jobs N] [--causes] NAME...` runs test modules of `numba.cuda.tests`, each in a process of
its own under the launcher `SOFT_CUDA`. A name is a module (`cudadrv.test_events`) or a folder (`cudapy`), of which all
modules are run. Wrong are: a test that fails and is not in `numba_expected.txt`, one that is there and does not fail, a
fault in a module's kernels that is not there, one that is there and not reported, and other counts than those that the
list has for these names: tests that are skipped or gone are none that pass. Not run is what the list leaves out.
`--causes` prints how long each module took, and what each test said that was skipped or failed.

A line of the list is the name of a test, `fault MODULE KIND`, `left out MODULE`, `left out TEST` or `counts NAME... =`
and what is printed at the end; why stands in the comment above.
"""

import concurrent.futures
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

EXPECTED = pathlib.Path(__file__).with_name("numba_expected.txt")
SECONDS = 600
ROOT = "numba.cuda.tests."
LEFT_OUT = "left out "
# What nothing wrote may be read: numba copies arrays to the host that no kernel has filled.
OPTIONS = ["--check", "races,streams", "--threads", "1", "--devices", "2"]


def say(kind, *what):
    """A line for the process that has started this one."""
    print(f"numba_tests {kind}", json.dumps(what), flush=True)


class Outcomes(unittest.TestResult):
    """Says how each test ends, one at a time: what a crash leaves is known as well."""

    def startTest(self, test):
        super().startTest(test)
        self.how, self.why = "passed", ""
        say("started", test.id())

    def stopTest(self, test):
        super().stopTest(test)
        say("ended", test.id(), self.how, self.why)

    def wrong(self, test, error):
        why = f"{error[0].__name__}: {error[1]}"
        if error[0].__name__ == "Skipped":
            # pytest's way.
            self.how, self.why = "skipped", str(error[1])
        elif isinstance(test, unittest.TestCase):
            self.how, self.why = "failed", why
        else:
            # What a class or a module does before its tests.
            say("ended", test.id(), "failed", why)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.wrong(test, error)

    addError = addFailure

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error:
            self.wrong(test, error)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        if isinstance(test, unittest.TestCase):
            self.how, self.why = "skipped", reason
        else:
            say("ended", test.id(), "skipped", reason)

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.how, self.why = "failed", "passes, and numba expects it to fail"


def cases(tests):
    """The tests of a suite of suites."""
    for test in tests:
        yield from cases(test) if isinstance(test, unittest.TestSuite) else [test]


class Plain(unittest.FunctionTestCase):
    """A function of a module that is a test."""

    def id(self):
        return f"{self._testFunc.__module__}.{self._testFunc.__name__}"


def module(name):
    """Runs one module in this process."""
    loader = unittest.defaultTestLoader
    tests = loader.loadTestsFromName(name)
    for error in loader.errors:
        # The reason stands in the last line.
        say("error", error.strip().splitlines()[-1])
    if not loader.errors:
        functions = vars(sys.modules[name]).items()
        plain = [Plain(f) for n, f in functions if n.startswith("test_") and hasattr(f, "__code__")]
        known, wanted = read_list(), unittest.TestSuite()
        for test in [*cases(tests), *plain]:
            if LEFT_OUT + test.id() in known:
                say("ended", test.id(), "left out", "by the list")
            else:
                wanted.addTest(test)
        wanted.run(Outcomes())
    say("spent", time.process_time())


class Ran:
    """A module's tests, run in a process of its own: how each has ended, and the faults of its kernels."""

    def __init__(self, launcher, name):
        self.name, self.ended, self.why, self.errors, self.seconds = name, {}, {}, [], 0
        own = [sys.executable, "-W", "ignore", __file__, "--module", name]
        command = [launcher, "run", *OPTIONS, "--", *own]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, **pipes, start_new_session=True) as ran:
            try:
                text, said = ran.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(ran.pid, signal.SIGKILL)
                text, said = ran.communicate()
                self.errors.append(f"not at its end after {SECONDS} s")
        for line in text.decode(errors="replace").splitlines():
            # What tests print may stand before it.
            found = re.search(r"numba_tests (\w+) (\[.*\])$", line)
            if found:
                self.line(found[1], *json.loads(found[2]))
        self.faults = dict(re.findall(r"^soft-cuda: \d+\. ((\w+) .*)$", said.decode(errors="replace"), re.M))
        # 1: a fault was reported; 3: the driver was not started.
        if not self.errors and ran.returncode not in (0, 1, 3):
            self.errors.append(f"ended with status {ran.returncode}")
        if not self.ended and not self.errors:
            self.errors.append("no test has run")

    def line(self, kind, first, how="failed", why="the process ended"):
        if kind == "error":
            self.errors.append(first)
        elif kind == "spent":
            self.seconds = first
        else:
            # What was running when the process ended has failed.
            self.ended[first], self.why[first] = how, " ".join(why.split())[:500]

    def explain(self):
        print(f"{short(self.name)}: {self.seconds:.0f} s of a processor", *self.errors, *self.faults, sep="\n    ")
        for test, how in self.ended.items():
            if how != "passed":
                print(f"    {test} {how}: {self.why[test]}")
        sys.stdout.flush()

    def compare(self, expected):
        """What is not as the list has it."""
        wrong = [f"{self.name}: {error}" for error in self.errors]
        for test, how in sorted(self.ended.items()):
            if how == "failed" and test not in expected:
                wrong.append(f"{test} failed: {self.why[test]}")
            if how != "failed" and test in expected:
                wrong.append(f"{test} {how} and is expected to fail: take it off the list")
        known = {line.split()[2] for line in expected if line.startswith(f"fault {short(self.name)} ")}
        # Of each kind the last that was reported.
        for kind, fault in {kind: fault for fault, kind in self.faults.items() if kind not in known}.items():
            wrong.append(f"{self.name}: a fault that is not on the list: {fault}")
        for kind in known - set(self.faults.values()):
            wrong.append(f"{self.name}: no {kind}, which is expected: take it off the list")
        return wrong


def short(name):
    return name.removeprefix(ROOT)


def modules(names, expected):
    """Full names of the modules; in folders without those that are left out."""
    root = pathlib.Path(importlib.util.find_spec("numba_cuda").origin).parent / "numba/cuda/tests"
    found = []
    for name in names:
        files = sorted((root / name).glob("test_*.py"))
        inside = [f"{name}.{file.stem}" for file in files] or [name]
        found += [ROOT + m for m in inside if LEFT_OUT + m not in expected or m == name]
    return found


def read_list():
    lines = EXPECTED.read_text().splitlines()
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}


def unknown(expected, all_ran):
    """Lines of the list about the modules that have run to which no test belongs."""
    tests = {test for ran in all_ran for test in ran.ended}
    mine = tuple(f"{ran.name}." for ran in all_ran)
    named = {line.removeprefix(LEFT_OUT) for line in expected}
    lines = [line for line in sorted(named) if line.startswith(mine) and line not in tests]
    return [f"{line} is on the list and is no test" for line in lines]


def main(words):
    if words[0] == "--module":
        return module(words[1])
    launcher, *words = words
    causes = "--causes" in words
    jobs = int(words[words.index("--jobs") + 1]) if "--jobs" in words else 1
    names = [w for i, w in enumerate(words) if not w.startswith("--") and words[i - 1] != "--jobs"]
    expected = read_list()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        all_ran = []
        for ran in pool.map(lambda name: Ran(launcher, name), modules(names, expected)):
            all_ran.append(ran)
            if causes:
                ran.explain()
    counts = {}
    for ran in all_ran:
        for how in ran.ended.values():
            counts[how] = counts.get(how, 0) + 1
    text = f"{len(all_ran)} modules: " + ", ".join(f"{count} {how}" for how, count in sorted(counts.items()))
    print(text)
    wrong = [line for ran in all_ran for line in ran.compare(expected)] + unknown(expected, all_ran)
    held = f"counts {' '.join(names)} = "
    wrong += [f"expected are {line.removeprefix(held)}" for line in expected if line.startswith(held) and line != held + text]
    print(*wrong, sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
