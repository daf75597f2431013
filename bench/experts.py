#!/usr/bin/env python3
"""Decoding by models of experts with random weights: the share of the machine's read bandwidth.

    pip install numpy
    python3 bench/experts.py --engraft target/release/engraft [--rounds 3] [--threads 2] [--batch 1,8]

Two shapes, small enough for a laptop, with the proportions of published models: gpt-oss's (32 experts of MXFP4, 4
of them a token, sinks, windows in every other block) and DeepSeek-V2-Lite's (latent attention, 64 experts, 6 of
them and 2 shared ones a token, bf16). `engraft bench` measures the limits in the same run; of experts it counts
those that a step is expected to read.
"""

import argparse
import json
import statistics
import struct
import subprocess
import tempfile
from pathlib import Path

import numpy as np

GPT_OSS = dict(
    model_type="gpt_oss", architectures=["GptOssForCausalLM"], attention_bias=True, head_dim=64, hidden_act="silu",
    hidden_size=1152, intermediate_size=1152, num_hidden_layers=8, num_attention_heads=24, num_key_value_heads=8,
    layer_types=["sliding_attention", "full_attention"] * 4, sliding_window=128, max_position_embeddings=4096,
    num_experts_per_tok=4, num_local_experts=32, rms_norm_eps=1e-5, rope_theta=150000.0, swiglu_limit=7.0,
    tie_word_embeddings=False, vocab_size=32000,
    quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=[
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]))

DEEPSEEK = dict(
    model_type="deepseek_v2", architectures=["DeepseekV2ForCausalLM"], attention_bias=False, hidden_act="silu",
    first_k_dense_replace=1, hidden_size=1024, intermediate_size=5472, kv_lora_rank=512, q_lora_rank=None,
    moe_intermediate_size=704, n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6, n_group=1,
    topk_group=1, topk_method="greedy", norm_topk_prob=False, routed_scaling_factor=1.0, num_attention_heads=8,
    num_key_value_heads=8, num_hidden_layers=8, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
    max_position_embeddings=4096, rms_norm_eps=1e-6, rope_theta=10000.0, tie_word_embeddings=False,
    vocab_size=32000)


def gpt_oss(c):
    """Names and shapes of a gpt-oss; of packed ones the bytes of codes and of scales."""
    h, n, e = c["hidden_size"], c["intermediate_size"], c["num_local_experts"]
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        yield from ((f"{at}{norm}.weight", [h]) for norm in ("input_layernorm", "post_attention_layernorm"))
        for name, rows, columns in (("q", q, h), ("k", kv, h), ("v", kv, h), ("o", h, q)):
            yield f"{at}self_attn.{name}_proj.weight", [rows, columns]
            yield f"{at}self_attn.{name}_proj.bias", [rows]
        yield f"{at}self_attn.sinks", [c["num_attention_heads"]]
        yield f"{at}mlp.router.weight", [e, h]
        yield f"{at}mlp.router.bias", [e]
        for name, rows, columns in (("gate_up", 2 * n, h), ("down", h, n)):
            yield f"{at}mlp.experts.{name}_proj_blocks", [e, rows, columns // 32, 16]
            yield f"{at}mlp.experts.{name}_proj_scales", [e, rows, columns // 32]
            yield f"{at}mlp.experts.{name}_proj_bias", [e, rows]


def deepseek(c):
    h, heads, latent, rope = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"], c["qk_rope_head_dim"]
    nope, value = c["qk_nope_head_dim"], c["v_head_dim"]

    def dense(at, inner):
        for name, rows, columns in (("gate", inner, h), ("up", inner, h), ("down", h, inner)):
            yield f"{at}.{name}_proj.weight", [rows, columns]

    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        yield from ((f"{at}{norm}.weight", [h]) for norm in ("input_layernorm", "post_attention_layernorm"))
        yield f"{at}self_attn.q_proj.weight", [heads * (nope + rope), h]
        yield f"{at}self_attn.kv_a_proj_with_mqa.weight", [latent + rope, h]
        yield f"{at}self_attn.kv_a_layernorm.weight", [latent]
        yield f"{at}self_attn.kv_b_proj.weight", [heads * (nope + value), latent]
        yield f"{at}self_attn.o_proj.weight", [h, heads * value]
        if i < c["first_k_dense_replace"]:
            yield from dense(f"{at}mlp", c["intermediate_size"])
            continue
        inner = c["moe_intermediate_size"]
        yield f"{at}mlp.gate.weight", [c["n_routed_experts"], h]
        yield from dense(f"{at}mlp.shared_experts", inner * c["n_shared_experts"])
        for expert in range(c["n_routed_experts"]):
            yield from dense(f"{at}mlp.experts.{expert}", inner)


def bf16(values):
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def values_of(name, shape, dice):
    """A tensor's type in safetensors and its values."""
    if name.endswith("_blocks"):
        return "U8", dice.integers(0, 256, shape, np.uint8)
    if name.endswith("_scales"):
        return "U8", dice.integers(118, 121, shape, np.uint8)
    if "norm" in name:
        return "BF16", bf16(np.ones(shape, np.float32))
    spread = shape[-1] ** -0.5 if len(shape) > 1 else 0.1
    return "BF16", bf16(dice.standard_normal(shape, np.float32) * spread)


def write(folder, config, tensors):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    dice, h = np.random.default_rng(1), config["hidden_size"]
    outside = [(name, [config["vocab_size"], h]) for name in ("model.embed_tokens.weight", "lm_head.weight")]
    made, header, at = [], {}, 0
    for name, shape in [*outside, ("model.norm.weight", [h]), *tensors(config)]:
        dtype, values = values_of(name, shape, dice)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
        made.append(values)
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in made:
            file.write(values.tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engraft", default="target/release/engraft")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", default="1,8")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, config, tensors in (("gpt-oss", GPT_OSS, gpt_oss), ("deepseek", DEEPSEEK, deepseek)):
            write(Path(folder) / name, config, tensors)
        for name in ("gpt-oss", "deepseek"):
            command = [args.engraft, "bench", "--model", f"{folder}/{name}", "--prompt-tokens", "128", "--decode", "48",
                       "--batch", args.batch, "--threads", str(args.threads), "--repeat", str(args.rounds), "--json"]
            said = json.loads(subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout)
            print(f"{name}: {said['parameters'] / 1e6:.0f} M parameters, {said['weight_bytes'] / 1e6:.0f} MB of weights,"
                  f" {said['weight_bytes_per_step'] / 1e6:.0f} MB read for one token; limits"
                  f" {said['limits']['read_gb_per_second']:.1f} GB/s, {said['limits']['fma_gflop_per_second']:.0f} Gflop/s")
            for batch in said["batches"]:
                steps = batch["step_seconds"]
                print(f"  {batch['batch']} rows: {1e3 * statistics.median(steps):.2f} ms a step (spread"
                      f" {max(steps) / min(steps):.2f}), {batch['decode_tokens_per_second']:.0f} tokens/s,"
                      f" {batch['decode_gb_per_second']:.1f} GB/s, {100 * batch['decode_share_of_read']:.0f} % of read,"
                      f" {100 * batch['decode_share_of_fma']:.0f} % of multiply-add; prefill"
                      f" {batch['prefill_tokens_per_second']:.0f} tokens/s,"
                      f" {100 * batch['prefill_share_of_fma']:.0f} % of multiply-add")


main()
