#!/usr/bin/env python3
"""Whisper-tiny's shape with random weights, here and in CTranslate2: a window and decode, runs in turns, medians.

    pip install ctranslate2 numpy
    python3 bench/whisper_peer.py --engraft target/release/engraft [--rounds 5] [--threads 2]

Both read the same values: a folder as transformers publishes Whisper, and CTranslate2's own form of it. Times are
of one window of 30 s: features encoded and the first token, then --decode tokens, greedy.
"""

import argparse
import json
import os
import re
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import ctranslate2
import numpy as np
from ctranslate2.specs import whisper_spec

TINY = dict(d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6, decoder_attention_heads=6,
            encoder_ffn_dim=1536, decoder_ffn_dim=1536, num_mel_bins=80, max_source_positions=1500,
            max_target_positions=448, vocab_size=51865)


def weights(c, seed=1):
    """Random values under transformers' names."""
    dice = np.random.default_rng(seed)
    wide, inner = c["d_model"], c["encoder_ffn_dim"]
    matrix = lambda *shape: (dice.standard_normal(shape) * np.prod(shape[1:]) ** -0.5).astype(np.float32)
    vector = lambda size: (0.1 * dice.standard_normal(size)).astype(np.float32)
    w = {"model.decoder.embed_tokens.weight": matrix(c["vocab_size"], wide),
         "model.encoder.embed_positions.weight": matrix(c["max_source_positions"], wide),
         "model.decoder.embed_positions.weight": matrix(c["max_target_positions"], wide)}
    for i, inputs in ((1, c["num_mel_bins"]), (2, wide)):
        w[f"model.encoder.conv{i}.weight"] = matrix(wide, inputs, 3)
        w[f"model.encoder.conv{i}.bias"] = vector(wide)

    def norm(name):
        w[f"{name}.weight"], w[f"{name}.bias"] = 1 + vector(wide), vector(wide)

    for stack in ("encoder", "decoder"):
        for i in range(c[f"{stack}_layers"]):
            block = f"model.{stack}.layers.{i}."
            for part in ("self_attn",) + (("encoder_attn",) if stack == "decoder" else ()):
                for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    w[f"{block}{part}.{name}.weight"] = matrix(wide, wide)
                    if name != "k_proj":
                        w[f"{block}{part}.{name}.bias"] = vector(wide)
                norm(f"{block}{part}_layer_norm")
            w[f"{block}fc1.weight"], w[f"{block}fc1.bias"] = matrix(inner, wide), vector(inner)
            w[f"{block}fc2.weight"], w[f"{block}fc2.bias"] = matrix(wide, inner), vector(wide)
            norm(f"{block}final_layer_norm")
        norm(f"model.{stack}.layer_norm")
    return w


def write_folder(path, c, w):
    path.mkdir(parents=True, exist_ok=True)
    config = dict(c, model_type="whisper", architectures=["WhisperForConditionalGeneration"], is_encoder_decoder=True,
                  activation_function="gelu", decoder_start_token_id=50258, eos_token_id=50257, bos_token_id=50257,
                  pad_token_id=50257)
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
    spec = whisper_spec.WhisperSpec(c["encoder_layers"], c["encoder_attention_heads"], c["decoder_layers"],
                                    c["decoder_attention_heads"])

    def linear(to, *names):
        weights = [w[f"{name}.weight"] for name in names]
        biases = [w.get(f"{name}.bias", np.zeros(len(weight), np.float32)) for name, weight in zip(names, weights)]
        to.weight, to.bias = np.concatenate(weights), np.concatenate(biases)

    def norm(to, name):
        to.gamma, to.beta = w[f"{name}.weight"], w[f"{name}.bias"]

    for stack, name in ((spec.encoder, "encoder"), (spec.decoder, "decoder")):
        stack.position_encodings.encodings = w[f"model.{name}.embed_positions.weight"]
        norm(stack.layer_norm, f"model.{name}.layer_norm")
        for i, layer in enumerate(stack.layer):
            block = f"model.{name}.layers.{i}."
            linear(layer.self_attention.linear[0], *(f"{block}self_attn.{part}_proj" for part in "qkv"))
            linear(layer.self_attention.linear[1], f"{block}self_attn.out_proj")
            norm(layer.self_attention.layer_norm, f"{block}self_attn_layer_norm")
            if name == "decoder":
                linear(layer.attention.linear[0], f"{block}encoder_attn.q_proj")
                linear(layer.attention.linear[1], *(f"{block}encoder_attn.{part}_proj" for part in "kv"))
                linear(layer.attention.linear[2], f"{block}encoder_attn.out_proj")
                norm(layer.attention.layer_norm, f"{block}encoder_attn_layer_norm")
            linear(layer.ffn.linear_0, f"{block}fc1")
            linear(layer.ffn.linear_1, f"{block}fc2")
            norm(layer.ffn.layer_norm, f"{block}final_layer_norm")
    for i in (1, 2):
        conv = getattr(spec.encoder, f"conv{i}")
        conv.weight, conv.bias = w[f"model.encoder.conv{i}.weight"], w[f"model.encoder.conv{i}.bias"]
    spec.decoder.embeddings.weight = w["model.decoder.embed_tokens.weight"]
    spec.decoder.projection.weight = w["model.decoder.embed_tokens.weight"]
    spec.decoder.scale_embeddings = False
    tokens = [f"t{i}" for i in range(50257)] + ["<|endoftext|>", "<|startoftranscript|>"]
    languages = [f"<|l{i}|>" for i in range(99)]
    tokens += languages + ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>",
                           "<|notimestamps|>"]
    tokens += [f"<|{0.02 * i:.2f}|>" for i in range(c["vocab_size"] - len(tokens))]
    spec.register_vocabulary(tokens)
    spec.config.suppress_ids, spec.config.suppress_ids_begin, spec.config.lang_ids = [], [], []
    spec.config.alignment_heads = [(0, 0)]
    spec.validate()
    spec.optimize(quantization=quantization)
    path.mkdir(parents=True, exist_ok=True)
    spec.save(str(path))


def peer(model, features, decode):
    """Seconds of a window with its first token, and of a decoded token: without the window, whose noise is larger."""
    begin = time.perf_counter()
    encoded = model.encode(features)
    window = time.perf_counter() - begin

    def run(count):
        begin = time.perf_counter()
        # Half of its length, at most, is what follows the prompt.
        made = model.generate(encoded, [[50258]], beam_size=1, max_length=2 * count, suppress_blank=False,
                              suppress_tokens=[50257])
        took, length = time.perf_counter() - begin, len(made[0].sequences_ids[0])
        if length != count:
            raise SystemExit(f"CTranslate2 has made {length} tokens, {count} were asked for")
        return took
    few, many = run(1), run(1 + decode)
    return window + few, (many - few) / decode


def engraft(program, folder, c, decode, threads, more):
    """The same two, and the most memory that was resident, in bytes."""
    command = [program, "bench", "--model", folder, "--decode", str(decode), "--batch", "1", "--threads", str(threads),
               "--repeat", "1", "--json", *more]
    out = subprocess.run(command, capture_output=True, text=True)
    if out.returncode:
        raise SystemExit(out.stderr)
    report = json.loads(out.stdout)
    batch = report["batches"][0]
    return (c["max_source_positions"] / batch["prefill_tokens_per_second"], 1 / batch["decode_tokens_per_second"],
            report.get("peak_memory_bytes") or 0)


def resident():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) * 1024


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--engraft", required=True)
    parse.add_argument("--rounds", type=int, default=5)
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument("--decode", type=int, default=64)
    args = parse.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder, values = Path(folder), weights(TINY)
        write_folder(folder / "engraft", TINY, values)
        size = os.path.getsize(folder / "engraft" / "model.safetensors")
        noise = np.random.default_rng(2).standard_normal((1, TINY["num_mel_bins"], 3000)).astype(np.float32)
        features = ctranslate2.StorageView.from_array(noise)
        # CTranslate2 quantizes embeddings, too.
        both = ["--quantize", "w8a8", "--quantize-embeddings"]
        for name, quantization, more in (("f32", None, []), ("int8", "int8", both)):
            write_peer(folder / name, TINY, values, quantization)
            model = ctranslate2.models.Whisper(str(folder / name), device="cpu", inter_threads=1,
                                               intra_threads=args.threads)
            peer(model, features, 8)
            rows = []
            for _ in range(args.rounds):
                ours = engraft(args.engraft, folder / "engraft", TINY, args.decode, args.threads, more)
                rows.append((*ours[:2], *peer(model, features, args.decode), ours[2]))
                print(name, " ".join(f"{1e3 * value:.3f}" for value in rows[-1][:4]), "ms", flush=True)
            ours = [statistics.median(row[i] for row in rows) for i in range(5)]
            print(f"{name}: window and first token {1e3 * ours[0]:.1f} ms, CTranslate2 {1e3 * ours[2]:.1f}; "
                  f"a token {1e3 * ours[1]:.3f} ms, CTranslate2 {1e3 * ours[3]:.3f}; "
                  f"resident {ours[4] / 1e6:.0f} MB, weights {size / 1e6:.0f} MB in f32", flush=True)


if __name__ == "__main__":
    main()
