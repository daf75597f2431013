#!/usr/bin/env python3
"""What formats of weights cost a model: mean log-probability of a text's tokens, each format quantized while loading.

    python3 bench/perplexity.py --engraft target/release/engraft --model MODEL --text FILE [--formats "int8 Q4_0 ..."]

The text is divided at ends of lines into pieces of --piece letters at least, so that every token has a context; the
first token of a piece is not scored, nor is what is too short for a piece at the end: how many letters is printed.
"""

import argparse
import json
import math
import subprocess
import tempfile

FORMATS = ("stored f16 bf16 Q8_0 int8:64 int8 w8a8 fp8:128 fp8 fp8-e5m2 fp6:128 fp6 Q5_1 Q5_0 int4a:32 Q4_1 IQ4_NL Q4_0 nf4 nf4:128 "
           "int4:32 fp4 fp4:32 mxfp4 int4a:64 int4:64 int4a:128 int4:128 int4a:576 int4:576")


def pieces(text, least):
    all, now = [], ""
    for line in text.splitlines(keepends=True):
        now += line
        if len(now) >= least:
            all.append(now)
            now = ""
    return all, len(now)


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--engraft", required=True)
    parse.add_argument("--model", required=True)
    parse.add_argument("--text", required=True)
    parse.add_argument("--piece", type=int, default=4000)
    parse.add_argument("--formats", default=FORMATS)
    parse.add_argument("--embeddings", action="store_true", help="quantize the table of tokens, too")
    args = parse.parse_args()
    with open(args.text, encoding="utf-8") as file:
        texts, left = pieces(file.read(), args.piece)
    if not texts:
        raise SystemExit(f"{args.text}: {left} letters; --piece {args.piece} asks for more")
    print(f"{len(texts)} pieces; {left} letters at the end are not scored", flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as lines:
        lines.writelines(json.dumps(text) + "\n" for text in texts)
        lines.flush()
        for name in args.formats.split():
            more = [] if name == "stored" else ["--quantize", name] + ["--quantize-embeddings"] * args.embeddings
            done = subprocess.run([args.engraft, "score", "--model", args.model, *more, lines.name], capture_output=True,
                                  text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
            said = [json.loads(line) for line in done.stdout.splitlines()]
            count = sum(len(one["logprobs"]) for one in said)
            mean = sum(one["logprob"] for one in said) / count
            print(f"{name}: {count} tokens, mean log-probability {mean:.4f}, perplexity {math.exp(-mean):.3f}", flush=True)


if __name__ == "__main__":
    main()
