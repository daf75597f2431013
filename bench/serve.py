#!/usr/bin/env python3
"""The server's targets, measured over HTTP: one command, one table, raw figures in a file.

    bench/serve.py PROGRAM MODEL [--peer PEER] [--only NAME ...] [--rounds N] [--out FILE]

PROGRAM is `engraft` (release build), MODEL a .gguf file. PEER is llama.cpp's `llama-server`; it answers the
same requests by the same bytes, round by round in turns with ours. What is measured:

  warm      first token of 2,048 tokens of which 2,032 were there before, against none of them (target 3)
  goodput   chats at random times, prompts of 32 to 512 tokens, answers of 16 to 128: requests a second whose
            first token came within 2 s and whose others took 150 ms each at most, for each rate of --rates;
            and the largest of these rates at which nine of ten are so (target 4)
  stall     time between the tokens of eight streams while prompts of 2,000 tokens arrive (target 5)
  prefixes  requests a second of 32 beginnings of 1,000 tokens in turn, from the second time on (target 7)
  tokens    streamed tokens a second of 256 streams on a model that computes nothing: --null is the folder of
            `serve-null` and `serve-streams` (`cargo build --release -p serve-http`) (target 8)
  cost      what the server takes: of the program's size (--without: the program built without `serve`), of
            memory next to `engraft chat`, of a core with 100 idle connections (target 10)
  start     from the start of the process to the first token, demo model (target 11)

--quick makes all of it small: whether it runs, not what it shows. Prompts are token ids, so all have the same
lengths everywhere. Nothing but Python is needed; bench/serve_aiperf.py has another client's view.
"""

import argparse
import datetime
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile

import serve_load as load

TARGETS = {
    "warm": ("times sooner", "20 or more"),
    "goodput": ("good/s", "1.0 of the peer's or more"),
    "stall": ("p99 / p50", "2.5 or less; p99 0.5 of the peer's or less"),
    "prefixes": ("requests/s", "the peer's or more"),
    "tokens": ("tokens/s", "60,000 or more"),
    "cost": ("memory, MB", "15 or less; size 8 MB, 0.5 % of a core"),
    "start": ("first token, ms", "150 or less"),
}
# What the demo model alone, or no model, is needed for.
OURS_ALONE = {"tokens", "cost", "start"}
OURS = "{program} serve --model {model} --port {port} --max-num-seqs {slots} --max-context 4096"
PEER = "{peer} -m {model} --port {port} -np {slots} -t {threads} -c {context}"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("model")
    parser.add_argument("--peer", help="llama-server")
    parser.add_argument("--only", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rates", type=lambda text: [float(x) for x in text.split(",")], default=[0.5, 1.0, 1.5, 2.0])
    parser.add_argument("--requests", type=int, default=60, help="of each rate of `goodput`")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the peer; ours takes all")
    parser.add_argument("--null", type=pathlib.Path, help="folder of serve-null and serve-streams")
    parser.add_argument("--without", type=pathlib.Path, help="the program without `serve`")
    parser.add_argument("--out", type=pathlib.Path, help="file of the figures")
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def warm(server, args, dice):
    """Cold and warm first tokens, ms; how many times sooner the warm one is."""
    length, page = (96, 16) if args.quick else (2048, 16)
    cold, soon = [], []
    for _ in range(1 if args.quick else 3):
        prompt = load.ids(dice, length)
        cold.append(load.ask(server, prompt, 1).first)
        soon.append(load.ask(server, prompt[:-page] + load.ids(dice, page), 1).first)
    cold, soon = statistics.median(cold), statistics.median(soon)
    return {"cold, ms": cold * 1e3, "warm, ms": soon * 1e3, "times sooner": cold / soon}


def is_good(answer):
    return answer.first <= 2.0 and (len(answer.times) < 2 or answer.per_token <= 0.15)


def goodput(server, args, dice):
    """Good requests a second at each rate, and the largest rate at which nine of ten are good."""
    figures, best, top = {}, 0.0, 0.0
    for rate in args.rates[:1] if args.quick else args.rates:
        count, most = (3, 40) if args.quick else (args.requests, 512)
        plan, at = [], 0.0
        for _ in range(count):
            at += dice.expovariate(rate)
            plan.append((at, load.ids(dice, dice.randint(32, most)), dice.randint(16, 128)))
        answers, took = load.open_loop(server, plan)
        good = sum(map(is_good, answers))
        figures[f"good/s at {rate:g}"] = good / took
        figures[f"% at {rate:g}"] = 100 * good / count
        best = max(best, good / took)
        top = rate if good >= 0.9 * count else top
    return {"good/s": best, "rate with 90 %": top, **figures}


def stall(server, args, dice):
    """Between tokens, ms: eight streams alone, and while long prompts arrive."""
    tokens, long, every = (8, 64, 1.0) if args.quick else (256, 2000, 5.0)
    alone = load.streams(server, dice, 8, tokens)
    with load.Prompts(server, dice, long, every) as prompts:
        mixed = load.streams(server, dice, 8, tokens)
    p50, p99 = load.percentile(mixed, 50) * 1e3, load.percentile(mixed, 99) * 1e3
    return {
        "alone p50, ms": load.percentile(alone, 50) * 1e3,
        "p50, ms": p50,
        "p99, ms": p99,
        "most, ms": max(mixed) * 1e3,
        "p99 / p50": p99 / p50,
        "prompts": prompts.answered,
    }


def prefixes(server, args, dice):
    """Requests a second, and milliseconds to their first tokens, once every beginning was there."""
    count, length, again = (2, 64, 1) if args.quick else (32, 1000, 3)
    begins = [load.ids(dice, length) for _ in range(count)]
    requests = lambda times: [begin + load.ids(dice, 16) for _ in range(times) for begin in begins]
    load.closed_loop(server, requests(1), 16, 8)
    answers, took = load.closed_loop(server, requests(again), 16, 8)
    first = statistics.median(answer.first for answer in answers)
    return {"requests/s": len(answers) / took, "first token, ms": first * 1e3}


def tokens(_, args, __):
    """The client's count, and the share of a core that the client took."""
    streams, count = (32, 64) if args.quick else (256, 480)
    command = [args.null / "serve-null", "--idle", "--seqs", str(streams), "--context", "512"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip().removeprefix("http://")
        client = [args.null / "serve-streams", address, str(streams), str(count)]
        said = subprocess.run(client, check=True, capture_output=True, text=True).stdout.strip()
    finally:
        server.terminate()
        server.wait()
    return {"tokens/s": float(said.rsplit(",", 1)[1].split()[0]), "streams": streams}


def cost(_, args, __):
    figures = {}
    if args.without:
        sizes = [program.stat().st_size / 1e6 for program in (args.program, args.without)]
        figures["size, MB"] = sizes[0] - sizes[1]
    common = ["--max-context", "512"]
    alone = load.resident_of_chat([args.program, "chat", *common])
    command = [args.program, "serve", "--port", "{port}", "--max-num-seqs", "1", "--header-timeout", "600", *common]
    with load.Server(list(map(str, command)), args.log) as server:
        load.ask(server, load.ids(load.dice(1), 8, 2000), 16)
        figures["memory, MB"] = load.resident(server.process.pid) - alone
        figures["% of a core, 100 idle"] = load.idle(server, 100, 2 if args.quick else 20)
    return figures


def start(_, args, __):
    times = [load.start_to_first_token(args.program) for _ in range(2 if args.quick else 10)]
    return {"first token, ms": statistics.median(times) * 1e3, "most, ms": max(times) * 1e3}


def commands(args, name):
    """Of each server; eight streams and the prompts between them need more than eight places."""
    slots = 12 if name == "stall" else 8
    values = {"program": args.program, "model": args.model, "peer": args.peer, "slots": slots}
    values |= {"threads": args.threads, "context": slots * 4096, "port": "{port}"}
    named = {"engraft": OURS} | ({"peer": PEER} if args.peer else {})
    return {server: shlex.split(text.format(**values)) for server, text in named.items()}


def spread(values):
    """The median, and the least and the most."""
    return f"{statistics.median(values):.4g} [{min(values):.4g}, {max(values):.4g}]"


def table(seen):
    print("\n| target | server | figure | median [least, most] | wanted |")
    print("| --- | --- | --- | --- | --- |")
    for (name, server), rounds in seen.items():
        for figure in rounds[0]:
            wanted = TARGETS[name][1] if figure == TARGETS[name][0] and server == "engraft" else ""
            print(f"| {name} | {server} | {figure} | {spread([one[figure] for one in rounds])} | {wanted} |")


class Tee:
    """Standard output, and the file of the figures."""

    def __init__(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file, self.out = open(path, "a"), sys.stdout

    def write(self, text):
        self.out.write(text)
        self.file.write(text)

    def flush(self):
        self.out.flush()
        self.file.flush()


def main():
    args = arguments()
    if "tokens" in args.only and not args.null:
        args.only.remove("tokens")
        print("tokens: left out, --null is not given", file=sys.stderr)
    day, machine = datetime.date.today(), f"{os.cpu_count()}vcpu"
    runs = pathlib.Path(__file__).resolve().parent / "runs" / f"{day}-{machine}"
    model = pathlib.Path(args.model).stem
    out = args.out or runs / f"serve-{model}.txt"
    args.log = pathlib.Path(tempfile.gettempdir()) / "engraft-serve-bench.log"
    sys.stdout = Tee(out)
    print(f"# bench/serve.py {' '.join(args.only)}, {args.rounds} rounds, {datetime.datetime.now():%F %T}, {platform.machine()}")
    for name in args.only:
        for server, command in ({} if name in OURS_ALONE else commands(args, name)).items():
            words = [pathlib.Path(word).name if "/" in word else word for word in command]
            print(f"# {name}, {server}: {' '.join(words)}")
    seen = {}
    for round_ in range(args.rounds):
        for name in args.only:
            servers = {"engraft": None} if name in OURS_ALONE else commands(args, name)
            # Who comes first changes, so that a machine that becomes slower or faster favours neither.
            for server, command in sorted(servers.items(), reverse=round_ % 2 == 1):
                measure, dice = globals()[name], load.dice(round_)
                if command is None:
                    figures = measure(None, args, dice)
                else:
                    with load.Server(command, args.log) as running:
                        load.ask(running, load.ids(dice, 32), 4)
                        figures = measure(running, args, dice)
                seen.setdefault((name, server), []).append(figures)
                print(round_, name, server, *(f"{key}: {value:.4g};" for key, value in figures.items()), flush=True)
    table(seen)
    print(flush=True)


if __name__ == "__main__":
    main()
