#!/usr/bin/env python3
"""A LLaMA with random weights in every format, here and in llama.cpp: prefill and decode, in turns, medians.

    pip install gguf numpy
    python3 bench/llama_peer.py --engraft target/release/engraft --peer FOLDER [--rounds 5] [--threads 2]

FOLDER has llama.cpp's `llama-bench` and `llama-quantize`. Both programs read the same GGUF file, which
`llama-quantize` has made of one in f32: a prompt of --prompt tokens, then --decode tokens behind it. Keys and
values are f16 in both, llama.cpp's default. The shape is the "M" of `engraft bench` (12 blocks, 768 columns,
109.5 M parameters) unless the options say otherwise.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

import gguf
import numpy as np

FORMATS = "F32 F16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K_M Q4_K_M Q5_K_M Q6_K IQ4_NL IQ4_XS"


def write(path, args):
    """The f32 file, under llama.cpp's names, with a tokenizer of bytes."""
    dice = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(args.layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(args.hidden)
    writer.add_feed_forward_length(args.inner)
    writer.add_head_count(args.heads)
    writer.add_head_count_kv(args.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(0)
    special = ["<unk>", "<s>", "</s>"]
    pieces = special + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += [f"x{i}" for i in range(args.vocab - len(pieces))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([0.0] * len(pieces))
    kind = gguf.TokenType
    others = [kind.NORMAL] * (args.vocab - 259)
    writer.add_token_types([kind.UNKNOWN, kind.CONTROL, kind.CONTROL] + [kind.BYTE] * 256 + others)

    def matrix(name, rows, columns):
        values = dice.uniform(-1, 1, (rows, columns)) * (3 / columns) ** 0.5
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    def norm(name):
        writer.add_tensor(f"{name}.weight", np.ones(args.hidden, np.float32))

    matrix("token_embd", args.vocab, args.hidden)
    for i in range(args.layers):
        norm(f"blk.{i}.attn_norm")
        for part in ("q", "k", "v", "output"):
            matrix(f"blk.{i}.attn_{part}", args.hidden, args.hidden)
        norm(f"blk.{i}.ffn_norm")
        matrix(f"blk.{i}.ffn_gate", args.inner, args.hidden)
        matrix(f"blk.{i}.ffn_up", args.inner, args.hidden)
        matrix(f"blk.{i}.ffn_down", args.hidden, args.inner)
    norm("output_norm")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def output(*command):
    return subprocess.run(list(map(str, command)), check=True, text=True, capture_output=True).stdout


def peer(args, file):
    """Prefill and decode in tokens per second. llama-bench decodes from an empty cache unless it gets a depth."""
    rate = {}
    for row in ((args.prompt, 0, 0), (0, args.decode, args.prompt)):
        said = output(args.peer / "llama-bench", "-m", file, "-p", row[0], "-n", row[1], "-d", row[2],
                      "-t", args.threads, "-r", 1, "-o", "json")
        rate[row[0] > 0] = json.loads(said)[0]["avg_ts"]
    return rate[True], rate[False]


def ours(args, file):
    """The same here; of the machine's limits, as this run has measured them, the share of each and themselves."""
    said = json.loads(output(args.engraft, "bench", "--model", file, "--prompt-tokens", args.prompt, "--decode",
                             args.decode, "--threads", args.threads, "--kv-dtype", "f16", "--repeat", 1, "--json"))
    row, limits = said["batches"][0], said["limits"]
    return (row["prefill_tokens_per_second"], row["decode_tokens_per_second"], row["prefill_share_of_fma"],
            row["decode_share_of_read"], limits["fma_gflop_per_second"], limits["read_gb_per_second"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engraft", default="target/release/engraft")
    parser.add_argument("--peer", type=Path, required=True)
    for name, default in dict(rounds=5, threads=2, prompt=512, decode=128, layers=12, hidden=768, heads=12,
                              inner=2048, vocab=32000).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--formats", default=FORMATS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        plain, files = folder / "F32.gguf", {}
        write(plain, args)
        for name in args.formats.split():
            files[name] = folder / f"{name}.gguf"
            if name != "F32":
                # Mixes (Q4_K_M) give some matrices more bits.
                pure = [] if name.endswith(("_S", "_M", "_L")) else ["--pure"]
                output(args.peer / "llama-quantize", *pure, plain, files[name], name, args.threads)
        found = {name: ([], []) for name in files}
        for number in range(args.rounds):
            for name, file in files.items():
                for rates, program in zip(found[name], (ours, peer)):
                    rates.append(program(args, file))
                here, there = found[name][0][-1], found[name][1][-1]
                print(f"round {number + 1}, {name}: here", *(f"{rate:.0f}" for rate in here[:2]),
                      "llama.cpp", *(f"{rate:.0f}" for rate in there),
                      f"limits {here[4]:.0f} Gflop/s, {here[5]:.1f} GB/s", flush=True)
    print(f"{args.rounds} rounds, {args.threads} threads, prompt {args.prompt}, decode {args.decode}; tokens/s")
    print("spread: the largest by the smallest; shares: of the FMA peak and of the read bandwidth in the same run")
    print("| format | prefill here | llama.cpp | ratio | decode here | llama.cpp | ratio | spread here | shares |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, rates in found.items():
        row, spread = [name], []
        shares = [f"{100 * statistics.median(rate[part] for rate in rates[0]):.0f} %" for part in (2, 3)]
        for part in (0, 1):
            here, there = ([rate[part] for rate in of] for of in rates)
            own, other = statistics.median(here), statistics.median(there)
            row += [f"{own:.0f}", f"{other:.0f}", f"{own / other:.2f}"]
            spread.append(f"{max(here) / min(here):.2f}")
        print("|", " | ".join(row + [", ".join(spread), ", ".join(shares)]), "|")


main()
