#!/usr/bin/env python3
"""What clients see of a server under load, measured by aiperf: ours, and a peer next to it.

    bench/serve.py PROGRAM MODEL TOKENIZER OUT [--peer COMMAND] [--rounds N] [--scenario NAME]

PROGRAM is `engraft`; MODEL what `--model` takes; TOKENIZER a folder or file that transformers can read, by
which prompts are made and tokens counted; results go to the folder OUT. The peer is a command of another
server with OpenAI's routes, in which {port} and {model} are replaced. Rounds of the two alternate, and
medians over rounds are printed. aiperf has to be on PATH (`pip install aiperf==0.13.0`).

Scenarios:
  poisson  chats that arrive at random, prompts of some 32 to 512 tokens and answers of 16 to 128: goodput is
           the requests a second whose first token came within 2 s and whose others took 150 ms each at most
  streams  eight streams side by side, alone: the time between tokens
  mixed    the same while prompts of 2,000 tokens arrive
"""

import argparse
import json
import pathlib
import socket
import statistics
import subprocess
import time
import urllib.request

GOODPUT = "time_to_first_token:2000 inter_token_latency:150"
# Name of a figure, and where aiperf's results have it.
FIGURES = [
    ("good/s", "goodput", "avg"),
    ("requests/s", "request_throughput", "avg"),
    ("tokens/s", "output_token_throughput", "avg"),
    ("first token p50, ms", "time_to_first_token", "p50"),
    ("p99", "time_to_first_token", "p99"),
    ("between tokens p50, ms", "inter_token_latency", "p50"),
    ("p99", "inter_token_latency", "p99"),
    ("errors, %", "request_error_rate", "avg"),
]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("tokenizer")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--peer", help="command of another server")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second of `poisson`")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--scenario", action="append", choices=["poisson", "streams", "mixed"])
    return parser.parse_args()


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Server:
    """A server on a port of its own, ended with the block."""

    def __init__(self, command, log):
        self.port = free_port()
        words = [word.replace("{port}", str(self.port)) for word in command]
        self.log = open(log, "w")
        self.process = subprocess.Popen(words, stdout=self.log, stderr=subprocess.STDOUT)

    def __enter__(self):
        for _ in range(600):
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended with status {self.process.returncode}: {self.log.name}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2) as answer:
                    if answer.status == 200:
                        return self
            except OSError:
                pass
            time.sleep(0.2)
        raise SystemExit(f"the server does not become ready: {self.log.name}")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.log.close()

    def model(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models", timeout=10) as answer:
            return json.load(answer)["data"][0]["id"]


def load(server, args, folder, flags):
    """Starts aiperf; its results will lie in the folder."""
    command = ["aiperf", "profile", "--model", server.model(), "--url", f"http://127.0.0.1:{server.port}"]
    command += ["--endpoint-type", "chat", "--streaming", "--tokenizer", args.tokenizer, "--ui", "none"]
    command += ["--use-server-token-count", "--random-seed", "1", "--goodput", GOODPUT, "--output-artifact-dir", str(folder), *flags]
    folder.mkdir(parents=True, exist_ok=True)
    log = open(folder / "aiperf.log", "w")
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def ended(process, folder):
    if process.wait() != 0:
        raise SystemExit(f"aiperf ended with status {process.returncode}: {folder / 'aiperf.log'}")
    return json.loads((folder / "profile_export_aiperf.json").read_text())


def lengths(prompt, spread, answer, answer_spread):
    return [
        *("--synthetic-input-tokens-mean", str(prompt), "--synthetic-input-tokens-stddev", str(spread)),
        *("--output-tokens-mean", str(answer), "--output-tokens-stddev", str(answer_spread)),
    ]


def poisson(server, args, folder):
    flags = ["--request-rate", str(args.rate), "--request-rate-mode", "poisson"]
    flags += ["--request-count", str(args.requests), *lengths(272, 120, 72, 28)]
    return ended(load(server, args, folder, flags), folder)


def streams(server, args, folder):
    flags = ["--concurrency", "8", "--request-count", "16", *lengths(64, 0, 128, 0)]
    return ended(load(server, args, folder, flags), folder)


def mixed(server, args, folder):
    flags = ["--request-rate", "0.2", "--request-rate-mode", "constant", "--request-count", "1000"]
    prompts = load(server, args, folder / "prompts", flags + lengths(2000, 0, 4, 0))
    try:
        return streams(server, args, folder)
    finally:
        prompts.terminate()
        prompts.wait()


def figure(results, name, part):
    return results.get(name, {}).get(part, float("nan"))


def main():
    args = arguments()
    ours = [args.program, "serve", "--model", args.model, "--port", "{port}", "--max-num-seqs", "16"]
    servers = {"engraft": ours}
    if args.peer:
        servers["peer"] = [word.replace("{model}", args.model) for word in args.peer.split()]
    seen = {}
    for round_ in range(args.rounds):
        for name, command in servers.items():
            with Server(command, args.out.parent / f"{args.out.name}-{name}.log") as server:
                for scenario in args.scenario or ["poisson", "streams", "mixed"]:
                    folder = args.out / f"{round_}-{name}-{scenario}"
                    results = globals()[scenario](server, args, folder)
                    row = [figure(results, key, part) for _, key, part in FIGURES]
                    seen.setdefault((scenario, name), []).append(row)
                    print(round_, scenario, name, *(f"{value:.2f}" for value in row), flush=True)
    print("\n| scenario | server |", " | ".join(name for name, *_ in FIGURES), "|")
    print("| --- " * (2 + len(FIGURES)) + "|")
    for (scenario, name), rows in sorted(seen.items()):
        medians = [statistics.median(column) for column in zip(*rows)]
        print(f"| {scenario} | {name} |", " | ".join(f"{value:.2f}" for value in medians), "|")


if __name__ == "__main__":
    main()
