#!/usr/bin/env python3
"""What clients see of a server under load, measured by aiperf: ours, and a peer next to it.

    pip install aiperf==0.13.0 gguf
    bench/serve_aiperf.py PROGRAM MODEL OUT [--peer COMMAND] [--rounds N] [--scenario NAME]

PROGRAM is `engraft`; MODEL a .gguf file, of whose byte-level BPE aiperf gets a tokenizer (--tokenizer names a
folder that transformers can read instead); results go to the folder OUT, what is printed to OUT/serve.txt as
well. The peer is a command of another server with OpenAI's routes, in which {port} and {model} are replaced.
Rounds of the two alternate, and medians over rounds are printed with the least and the most.

Scenarios:
  poisson  chats that arrive at random, prompts of some 32 to 512 tokens and answers of 16 to 128: goodput is
           the requests a second whose first token came within 2 s and whose others took 150 ms each at most
  streams  eight streams side by side, alone: the time between chunks
  mixed    the same while prompts of 2,000 tokens arrive

`between tokens` is aiperf's mean of a request, `between chunks` each single wait: a stall shows there.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import urllib.request

import serve_load

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
    ("between chunks p50, ms", "inter_chunk_latency", "p50"),
    ("p99", "inter_chunk_latency", "p99"),
    ("errors, %", "request_error_rate", "avg"),
]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--tokenizer", help="a folder that transformers can read")
    parser.add_argument("--peer", help="command of another server")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second of `poisson`")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--scenario", action="append", choices=["poisson", "streams", "mixed"])
    return parser.parse_args()


def tokenizer(model, folder):
    """A folder with the byte-level BPE of a .gguf file, by which prompts are made and counted."""
    import gguf
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    fields = gguf.GGUFReader(model).fields
    tokens, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges"))
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    bpe = Tokenizer(models.BPE({token: at for at, token in enumerate(tokens)}, pairs))
    digits, bytes_ = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.Sequence([digits, bytes_]), decoders.ByteLevel()
    folder.mkdir(parents=True, exist_ok=True)
    bpe.save(str(folder / "tokenizer.json"))
    end = tokens[fields["tokenizer.ggml.eos_token_id"].contents()]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": end, "eos_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def model(server):
    """The name that a server gives its model."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v1/models", timeout=10) as answer:
        return json.load(answer)["data"][0]["id"]


def load(server, args, folder, flags):
    """Starts aiperf; its results will lie in the folder."""
    command = ["aiperf", "profile", "--model", model(server), "--url", f"http://127.0.0.1:{server.port}"]
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


def spread(values):
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def main():
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    args.tokenizer = args.tokenizer or tokenizer(args.model, args.out / "tokenizer")
    ours = [args.program, "serve", "--model", args.model, "--port", "{port}", "--max-num-seqs", "12"]
    servers = {"engraft": ours}
    if args.peer:
        servers["peer"] = [word.replace("{model}", args.model) for word in args.peer.split()]
    seen, text = {}, open(args.out / "serve.txt", "a")

    def say(*words):
        print(*words, flush=True)
        print(*words, file=text, flush=True)

    for round_ in range(args.rounds):
        for name, command in servers.items():
            with serve_load.Server(command, args.out / f"{name}.log") as server:
                for scenario in args.scenario or ["poisson", "streams", "mixed"]:
                    folder = args.out / f"{round_}-{name}-{scenario}"
                    results = globals()[scenario](server, args, folder)
                    row = [figure(results, key, part) for _, key, part in FIGURES]
                    seen.setdefault((scenario, name), []).append(row)
                    say(round_, scenario, name, *(f"{value:.2f}" for value in row))
    say("\n| scenario | server |", " | ".join(name for name, *_ in FIGURES), "|")
    say("| --- " * (2 + len(FIGURES)) + "|")
    for (scenario, name), rows in sorted(seen.items()):
        say(f"| {scenario} | {name} |", " | ".join(map(spread, zip(*rows))), "|")


if __name__ == "__main__":
    main()
