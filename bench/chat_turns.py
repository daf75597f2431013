#!/usr/bin/env python3
"""Turns of `engraft chat` behind a long history: seconds from a line to the first output and to the last.

    bench/chat_turns.py PROGRAM MODEL [WORDS]

The first turn brings WORDS words of the README (3,060 of them are some 6,000 tokens), each of the others a few.
"""

import os
import pathlib
import random
import select
import subprocess
import sys
import time

# Seconds without output behind which an answer has ended.
QUIET = 4


def heard(chat):
    """What is said until it is quiet, and when that began and ended."""
    said, first, last = b"", None, time.monotonic()
    while not said or time.monotonic() - last < QUIET:
        if select.select([chat.stdout], [], [], 0.05)[0]:
            part = os.read(chat.stdout.fileno(), 1 << 16)
            if not part:
                break
            said, last = said + part, time.monotonic()
            first = first or last
    return said.decode(errors="replace"), first, last


def main(program, model, words=3060):
    readme = (pathlib.Path(__file__).parent.parent / "README.md").read_text().split()
    readme = [word for word in readme if word.isascii() and not word.startswith("<")]
    long = " ".join(random.Random(1).choices(readme, k=int(words)))
    command = [program, "chat", "-m", model, "-n", "16", "--temperature", "0", "--max-context", "8192"]
    chat = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
    )
    print(heard(chat)[0].strip())
    for turn, text in enumerate([long, "And what is the second thing?", "Say it in one word.", "Why?", "Is that so?"]):
        begin = time.monotonic()
        chat.stdin.write(text.encode() + b"\n")
        said, first, last = heard(chat)
        if first is None:
            sys.exit(f"turn {turn}: no answer")
        figures = said.strip().splitlines()[-1]
        print(f"turn {turn}: first output {first - begin:.2f} s, last {last - begin:.2f} s; {figures}")
    chat.stdin.close()
    chat.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
