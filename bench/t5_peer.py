#!/usr/bin/env python3
"""T5-small's shape with random weights, here and in CTranslate2: encoder and decode, runs in turns, medians.

    pip install ctranslate2 numpy
    python3 bench/t5_peer.py --engraft target/release/engraft [--rounds 5] [--threads 2]

Both read the same values: a folder as transformers publishes T5, and CTranslate2's own form of it. Times are of
one sequence: a text of --source tokens encoded, then --decode tokens, greedy, no end token before.
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

SMALL = dict(d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_decoder_layers=6, num_heads=8, vocab_size=32128)


def weights(c, seed=1):
    """Random values under transformers' names."""
    dice = np.random.default_rng(seed)
    wide, inner = c["num_heads"] * c["d_kv"], c["d_ff"]
    matrix = lambda rows, cols: (dice.standard_normal((rows, cols)) * cols**-0.5).astype(np.float32)
    norm = lambda: (1 + 0.1 * dice.standard_normal(c["d_model"])).astype(np.float32)
    w = {"shared.weight": matrix(c["vocab_size"], c["d_model"])}
    for stack, layers in (("encoder", c["num_layers"]), ("decoder", c["num_decoder_layers"])):
        for i in range(layers):
            block = f"{stack}.block.{i}.layer."
            attentions = [(0, "SelfAttention")] + ([(1, "EncDecAttention")] if stack == "decoder" else [])
            for at, name in attentions:
                for part in "qkv":
                    w[f"{block}{at}.{name}.{part}.weight"] = matrix(wide, c["d_model"])
                w[f"{block}{at}.{name}.o.weight"] = matrix(c["d_model"], wide)
                w[f"{block}{at}.layer_norm.weight"] = norm()
            if i == 0:
                w[f"{block}0.SelfAttention.relative_attention_bias.weight"] = matrix(32, c["num_heads"])
            last = len(attentions)
            w[f"{block}{last}.DenseReluDense.wi.weight"] = matrix(inner, c["d_model"])
            w[f"{block}{last}.DenseReluDense.wo.weight"] = matrix(c["d_model"], inner)
            w[f"{block}{last}.layer_norm.weight"] = norm()
        w[f"{stack}.final_layer_norm.weight"] = norm()
    return w


def write_folder(path, c, w):
    path.mkdir(parents=True, exist_ok=True)
    config = dict(c, model_type="t5", architectures=["T5ForConditionalGeneration"], feed_forward_proj="relu",
                  decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, is_encoder_decoder=True,
                  relative_attention_num_buckets=32, relative_attention_max_distance=128,
                  layer_norm_epsilon=1e-6, tie_word_embeddings=True)
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
    spec = transformer_spec.TransformerSpec.from_config(
        (c["num_layers"], c["num_decoder_layers"]), c["num_heads"], pre_norm=True,
        activation=common_spec.Activation.RELU, relative_attention_bias=True, rms_norm=True)
    for stack, name in ((spec.encoder, "encoder"), (spec.decoder, "decoder")):
        stack.layer_norm.gamma = w[f"{name}.final_layer_norm.weight"]
        table = stack.embeddings[0] if isinstance(stack.embeddings, list) else stack.embeddings
        table.weight = w["shared.weight"]
        stack.scale_embeddings = False
        for i, layer in enumerate(stack.layer):
            block = f"{name}.block.{i}.layer."
            own = layer.self_attention
            get = lambda at, kind, part: w[f"{block}{at}.{kind}.{part}.weight"]
            own.queries_scale = 1.0
            own.linear[0].weight = np.concatenate([get(0, "SelfAttention", part) for part in "qkv"])
            own.linear[-1].weight = get(0, "SelfAttention", "o")
            own.layer_norm.gamma = w[f"{block}0.layer_norm.weight"]
            own.relative_attention_bias = w[f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
            own.relative_attention_max_distance = np.int32(128)
            last = 1
            if name == "decoder":
                cross, last = layer.attention, 2
                cross.queries_scale = 1.0
                cross.linear[0].weight = get(1, "EncDecAttention", "q")
                cross.linear[1].weight = np.concatenate([get(1, "EncDecAttention", part) for part in "kv"])
                cross.linear[-1].weight = get(1, "EncDecAttention", "o")
                cross.layer_norm.gamma = w[f"{block}1.layer_norm.weight"]
            layer.ffn.linear_0.weight = w[f"{block}{last}.DenseReluDense.wi.weight"]
            layer.ffn.linear_1.weight = w[f"{block}{last}.DenseReluDense.wo.weight"]
            layer.ffn.layer_norm.gamma = w[f"{block}{last}.layer_norm.weight"]
    spec.decoder.projection.weight = w["shared.weight"]
    spec.decoder.scale_outputs = c["d_model"] ** -0.5
    tokens = ["<pad>", "</s>", "<unk>"] + [f"t{i}" for i in range(3, c["vocab_size"])]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    for key, value in dict(bos_token="<pad>", eos_token="</s>", unk_token="<unk>", decoder_start_token="<pad>").items():
        setattr(spec.config, key, value)
    spec.validate()
    spec.optimize(quantization=quantization)
    path.mkdir(parents=True, exist_ok=True)
    spec.save(str(path))


def peer(translator, source, decode):
    """Seconds of the encoder and of a decoded token, and the tokens."""
    text = [f"t{3 + (i * 37) % 32000}" for i in range(source)]
    def run(count):
        begin = time.perf_counter()
        result = translator.translate_batch([text], beam_size=1, max_decoding_length=count,
                                            min_decoding_length=count)
        return time.perf_counter() - begin, result[0].hypotheses[0]
    few, _ = run(1)
    many, tokens = run(1 + decode)
    return few, (many - few) / decode, [int(token[1:]) for token in tokens if token[0] == "t"]


def engraft(program, folder, source, decode, threads, more):
    out = subprocess.run([program, "bench", "--model", folder, "--prompt-tokens", str(source), "--context", str(source),
                          "--decode", str(decode), "--batch", "1", "--threads", str(threads), "--repeat", "1", "--json",
                          *more],
                         capture_output=True, text=True)
    if out.returncode:
        raise SystemExit(out.stderr)
    batch = json.loads(out.stdout)["batches"][0]
    return source / batch["prefill_tokens_per_second"], 1 / batch["decode_tokens_per_second"]


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--engraft", required=True)
    parse.add_argument("--rounds", type=int, default=5)
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument("--source", type=int, default=128)
    parse.add_argument("--decode", type=int, default=64)
    args = parse.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder, values = Path(folder), weights(SMALL)
        write_folder(folder / "engraft", SMALL, values)
        for name, quantization, more in (("f32", None, []), ("int8", "int8", ["--quantize", "w8a8"])):
            write_peer(folder / name, SMALL, values, quantization)
            translator = ctranslate2.Translator(str(folder / name), device="cpu", inter_threads=1,
                                                intra_threads=args.threads)
            peer(translator, args.source, 8)
            rows = []
            for _ in range(args.rounds):
                ours = engraft(args.engraft, folder / "engraft", args.source, args.decode, args.threads, more)
                theirs = peer(translator, args.source, args.decode)
                rows.append((*ours, *theirs[:2]))
                print(name, " ".join(f"{1e3 * value:.3f}" for value in rows[-1]), "ms", flush=True)
            ours = [statistics.median(row[i] for row in rows) for i in range(4)]
            print(f"{name}: encoder and first token {1e3 * ours[0]:.2f} ms, CTranslate2 {1e3 * ours[2]:.2f}; "
                  f"a token {1e3 * ours[1]:.3f} ms, CTranslate2 {1e3 * ours[3]:.3f}", flush=True)


if __name__ == "__main__":
    main()
