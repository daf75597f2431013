#!/usr/bin/env python3
"""A LLaMA of M's shape with random weights, here in w8a8 and in CTranslate2 in int8: prefill and decode, runs in turns.

    pip install ctranslate2 numpy
    python3 bench/w8a8_peer.py --engraft target/release/engraft [--rounds 5] [--threads 2]

Both read the same values. CTranslate2's int8 has a scale for each row of a weight and for each token, w8a8 one for 32
values of either. Times are of one sequence: a prompt of --prompt tokens with the first token, then --decode tokens.
"""

import argparse
import json
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import ctranslate2
import numpy as np
from ctranslate2.specs import common_spec, transformer_spec

M = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=12, intermediate_size=2048,
         vocab_size=32000)


def weights(c, seed=1):
    """Random values under transformers' names."""
    dice = np.random.default_rng(seed)
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    matrix = lambda rows, cols: (dice.standard_normal((rows, cols)) * cols**-0.5).astype(np.float32)
    norm = lambda: (1 + 0.1 * dice.standard_normal(hidden)).astype(np.float32)
    w = {"model.embed_tokens.weight": matrix(c["vocab_size"], hidden), "model.norm.weight": norm()}
    for i in range(c["num_hidden_layers"]):
        block = f"model.layers.{i}."
        for part in "qkvo":
            w[f"{block}self_attn.{part}_proj.weight"] = matrix(hidden, hidden)
        for part, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            w[f"{block}mlp.{part}_proj.weight"] = matrix(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            w[f"{block}{name}.weight"] = norm()
    return w


def write_folder(path, c, w):
    path.mkdir(parents=True, exist_ok=True)
    config = dict(c, model_type="llama", architectures=["LlamaForCausalLM"], rms_norm_eps=1e-5, rope_theta=10000.0,
                  max_position_embeddings=2048, tie_word_embeddings=True, hidden_act="silu")
    (path / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for name, value in w.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, at + value.nbytes]}
        at += value.nbytes
    text = json.dumps(header).encode()
    with open(path / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in w.values():
            file.write(value.tobytes())


def write_peer(path, c, w, quantization):
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        c["num_hidden_layers"], c["num_attention_heads"], activation=common_spec.Activation.SWISH, pre_norm=True,
        ffn_glu=True, rms_norm=True, rotary_dim=0, rotary_interleave=False, rotary_base=10000.0)
    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = w["model.embed_tokens.weight"]
    decoder.projection.weight = w["model.embed_tokens.weight"]
    decoder.layer_norm.gamma = w["model.norm.weight"]
    for i, layer in enumerate(decoder.layer):
        block = f"model.layers.{i}."
        get = lambda name: w[f"{block}{name}.weight"]
        layer.self_attention.layer_norm.gamma = get("input_layernorm")
        layer.ffn.layer_norm.gamma = get("post_attention_layernorm")
        layer.self_attention.linear[0].weight = np.concatenate([get(f"self_attn.{part}_proj") for part in "qkv"])
        layer.self_attention.linear[1].weight = get("self_attn.o_proj")
        layer.ffn.linear_0.weight = get("mlp.gate_proj")
        layer.ffn.linear_0_noact.weight = get("mlp.up_proj")
        layer.ffn.linear_1.weight = get("mlp.down_proj")
    spec.register_vocabulary(["<unk>", "<s>", "</s>"] + [f"t{i}" for i in range(3, c["vocab_size"])])
    for key, value in dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", layer_norm_epsilon=1e-5).items():
        setattr(spec.config, key, value)
    spec.validate()
    spec.optimize(quantization=quantization)
    path.mkdir(parents=True, exist_ok=True)
    spec.save(str(path))


def peer(generator, prompt, decode):
    """Seconds of the prompt with the first token, and of a token behind it."""
    text = [f"t{3 + (i * 37) % 31000}" for i in range(prompt)]

    def run(count):
        begin = time.perf_counter()
        generator.generate_batch([text], max_length=count, min_length=count, include_prompt_in_result=False)
        return time.perf_counter() - begin

    few = run(1)
    return few, (run(1 + decode) - few) / decode


def engraft(program, folder, prompt, decode, threads, more):
    out = subprocess.run([program, "bench", "--model", folder, "--prompt-tokens", str(prompt), "--context", str(prompt),
                          "--decode", str(decode), "--batch", "1", "--threads", str(threads), "--repeat", "1", "--json",
                          *more],
                         capture_output=True, text=True)
    if out.returncode:
        raise SystemExit(out.stderr)
    batch = json.loads(out.stdout)["batches"][0]
    return prompt / batch["prefill_tokens_per_second"], 1 / batch["decode_tokens_per_second"]


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--engraft", required=True, action="append", help="programs to compare")
    parse.add_argument("--rounds", type=int, default=5)
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument("--prompt", type=int, default=512)
    parse.add_argument("--decode", type=int, default=32)
    args = parse.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder, values = Path(folder), weights(M)
        write_folder(folder / "engraft", M, values)
        write_peer(folder / "peer", M, values, "int8")
        generator = ctranslate2.Generator(str(folder / "peer"), device="cpu", inter_threads=1,
                                          intra_threads=args.threads)
        peer(generator, args.prompt, 4)
        rows = []
        for _ in range(args.rounds):
            row = [engraft(program, folder / "engraft", args.prompt, args.decode, args.threads, ["--quantize", "w8a8"])
                   for program in args.engraft]
            rows.append([*row, peer(generator, args.prompt, args.decode)])
            print(" | ".join(f"{args.prompt / a:.0f} {1 / b:.1f}" for a, b in rows[-1]), "tokens/s", flush=True)
        for i, name in enumerate([*args.engraft, "CTranslate2 int8"]):
            prefill, token = (statistics.median(row[i][j] for row in rows) for j in (0, 1))
            print(f"{name}: prefill {args.prompt / prefill:.0f} tokens/s, decode {1 / token:.1f}", flush=True)


if __name__ == "__main__":
    main()
