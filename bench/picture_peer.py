#!/usr/bin/env python3
"""Stable Diffusion 1.5's shape with random weights, here and in PyTorch: UNet, decoder, memory, in turns, medians.

    pip install torch diffusers transformers
    python3 bench/picture_peer.py --engraft target/release/engraft [--rounds 5] [--threads 2] [--size 256]

Both read one folder as diffusers publishes it. Times are of one picture in f32 without guidance: a call of the
UNet (here the mean of a run's steps but the first, the scheduler's part included), and of the autoencoder's
decoder. PyTorch runs with its own layout and with channels last; the faster one counts.
Memory is the largest resident set of the whole process against the weights of all components.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel

STEPS = 4


def write_tokenizer(folder, start, end):
    """Bytes alone, as CLIP writes them, without a merge."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shown = {b: chr(b) for b in printable}
    for b in range(256):
        shown.setdefault(b, chr(256 + len(shown) - len(printable)))
    pieces = [shown[b] for b in range(256)]
    vocab = {piece: i for i, piece in enumerate(pieces + [piece + "</w>" for piece in pieces] + [start, end])}
    folder.mkdir(parents=True)
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    special = {"bos_token": start, "eos_token": end, "unk_token": end, "pad_token": end}
    config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "do_lower_case": True, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    return len(vocab)


def write_folder(folder):
    """The folder, its UNet, its autoencoder and the bytes of all weights."""
    torch.manual_seed(1)
    vocab = write_tokenizer(folder / "tokenizer", "<|startoftext|>", "<|endoftext|>")
    text = CLIPTextModel(CLIPTextConfig(
        vocab_size=vocab, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
        hidden_act="quick_gelu", bos_token_id=vocab - 2, eos_token_id=vocab - 1, pad_token_id=vocab - 1))
    unet = UNet2DConditionModel(sample_size=64, cross_attention_dim=768, attention_head_dim=8).eval()
    vae = AutoencoderKL(
        block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4, sample_size=512,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4).eval()
    scheduler = DDIMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
                              clip_sample=False, set_alpha_to_one=False, steps_offset=1)
    parts = {"text_encoder": text, "unet": unet, "vae": vae, "scheduler": scheduler}
    for name, part in parts.items():
        part.save_pretrained(folder / name)
    index = {"_class_name": "StableDiffusionPipeline", "feature_extractor": [None, None],
             "safety_checker": [None, None], "requires_safety_checker": False,
             "scheduler": ["diffusers", "DDIMScheduler"], "text_encoder": ["transformers", "CLIPTextModel"],
             "tokenizer": ["transformers", "CLIPTokenizer"], "unet": ["diffusers", "UNet2DConditionModel"],
             "vae": ["diffusers", "AutoencoderKL"]}
    (folder / "model_index.json").write_text(json.dumps(index))
    return unet, vae, sum(file.stat().st_size for file in folder.rglob("*.safetensors"))


def flops(module, call):
    """Twice the multiply-adds of a call's convolutions and linear layers, and its largest layer's activations."""
    counted, largest, hooks = 0, 0, []

    def count(layer, inputs, output):
        nonlocal counted, largest
        counted += 2 * output.numel() * layer.weight[0].numel()
        largest = max(largest, 4 * (inputs[0].numel() + output.numel()))

    for layer in module.modules():
        if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
            hooks.append(layer.register_forward_hook(count))
    call()
    for hook in hooks:
        hook.remove()
    return counted, largest


def seconds(call):
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def ours(args, folder):
    """Seconds a step, seconds for the decoder, largest resident bytes."""
    command = [args.engraft, "image", "--model", folder, "--prompt", "a picture", "--guidance", "1", "--seed", "1",
               "--steps", str(STEPS), "--size", f"{args.size}x{args.size}", "--threads", str(args.threads),
               "--out", f"{folder}/out.png"]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    times = re.search(r"([0-9.]+) s a step, ([0-9.]+) s to decode", said)
    assert status == 0 and times, said
    return float(times[1]), float(times[2]), 1024 * usage.ru_maxrss


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engraft", default="target/release/engraft")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--size", type=int, default=256)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        unet, vae, weights = write_folder(folder)
        latents, text = torch.randn(1, 4, args.size // 8, args.size // 8), torch.randn(1, 77, 768)
        calls = {"unet": lambda: unet(latents, 500, text), "decoder": lambda: vae.decode(latents)}
        work, largest = {}, 0
        for name, part in (("unet", unet), ("decoder", vae)):
            work[name], activations = flops(part, calls[name])
            largest = max(largest, activations)
        found = {key: [] for key in ("here unet", "here decoder", "resident", *(
            f"PyTorch {layout} {name}" for layout in ("rows", "channels last") for name in calls))}
        for number in range(args.rounds):
            unet_s, decoder_s, resident = ours(args, folder)
            found["here unet"].append(unet_s)
            found["here decoder"].append(decoder_s)
            found["resident"].append(resident)
            for layout, memory in (("rows", torch.contiguous_format), ("channels last", torch.channels_last)):
                unet.to(memory_format=memory)
                vae.to(memory_format=memory)
                for name, call in calls.items():
                    call()
                    found[f"PyTorch {layout} {name}"].append(statistics.mean(seconds(call) for _ in range(2)))
            print(f"round {number + 1}:", {key: round(values[-1], 4) for key, values in found.items()}, flush=True)
    middle = {key: statistics.median(values) for key, values in found.items()}
    print(f"PyTorch {torch.__version__}, {args.threads} threads, {args.size} x {args.size}, f32, {args.rounds} rounds")
    for name in calls:
        peer = min(middle[f"PyTorch {layout} {name}"] for layout in ("rows", "channels last"))
        own, work_done = middle[f"here {name}"], work[name] / 1e9
        spread = max(found[f"here {name}"]) / min(found[f"here {name}"])
        print(f"{name:8} {own:8.3f} s here ({work_done / own:.0f} Gflop/s, spread {spread:.2f}), {peer:8.3f} s in"
              f" PyTorch ({work_done / peer:.0f} Gflop/s): {peer / own:.2f} of its speed")
    asked = weights + largest
    print(f"memory: {middle['resident'] / 1e6:.0f} MB resident, weights and the largest layer {asked / 1e6:.0f} MB:"
          f" {middle['resident'] / asked:.2f}")


main()
