#!/usr/bin/env python3
"""GGUF files of the goldens beside, by llama.cpp's own converter: in their 16 bits, which hold their values, and without
tokenizers.

    tests/golden-gguf/make.py LLAMA_CPP [CASE ...]

LLAMA_CPP is its source (these files: build 11434); Python needs torch, transformers and what its `gguf-py` needs.
`changed.json` lists what a converted file cannot say: the folder is converted with what all published models of the
family have, and so the test reads it.
"""

import json
import logging
import os
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
CHANGED = json.loads((HERE / "changed.json").read_text())
# What the converter asks for in the words of code that is published with a model, where transformers has others.
ASKED = {
    "hunyuan_v1_moe": {"moe_intermediate_size": [16], "moe_topk": [2], "num_shared_expert": [1]},
    "eurobert": {"classifier_pooling": "mean"},
    "mimo_v2_flash": {
        "model_type": "mimo_v2",
        "hybrid_layer_pattern": [0, 1, 1],
        "swa_head_dim": 16,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_v_head_dim": 12,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "layernorm_epsilon": 0.001,
        "partial_rotary_factor": 0.5,
        "rope_parameters": None,
        "rope_theta": 500000.0,
        "swa_rope_theta": 1000.0,
    },
    "nomic_bert": {
        "activation_function": "swiglu",
        "causal": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "n_positions": 8192,
        "prenorm": False,
        "qkv_proj_bias": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
    },
}
# Tensors that no GGUF file of the family has.
WITHOUT = {"eurobert": ["lm_head.weight"]}


def convert(folder, out, name):
    import gguf
    import torch
    import conversion
    from conversion.base import ModelBase

    fields = ModelBase.load_hparams(folder, False)
    of_class = conversion.get_model_class(fields["architectures"][0])
    with torch.inference_mode():
        halves = fields.get("dtype", fields.get("torch_dtype")) == "float16"
        kind = gguf.LlamaFileType.MOSTLY_F16 if halves else gguf.LlamaFileType.MOSTLY_BF16
        model = of_class(folder, kind, out, is_big_endian=False, use_temp_file=False, eager=True)
        for one in (model, getattr(model, "impl", model)):
            one.set_vocab = lambda: None
        model.write()
    print(f"{name}: {out.stat().st_size} bytes")


def main():
    from safetensors.torch import load_file, save_file

    source, *names = sys.argv[1:]
    sys.path[:0] = [source, f"{source}/gguf-py"]
    logging.disable(logging.CRITICAL)
    for name in names or sorted(file.stem for file in HERE.glob("*.gguf")):
        golden = HERE.parent / "golden" / name
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            for file in golden.iterdir():
                if file.name == "model.safetensors" and name in WITHOUT:
                    tensors = {tensor: rows for tensor, rows in load_file(file).items() if tensor not in WITHOUT[name]}
                    save_file(tensors, folder / file.name, {"format": "pt"})
                elif file.name != "config.json":
                    os.symlink(file, folder / file.name)
            config = json.loads((golden / "config.json").read_text())
            for field, value in CHANGED.get(name, {}).items():
                config.pop(field, None)
                if value is not None:
                    config[field] = value
            words = {str(i): i for i in range(config["vocab_size"])}
            for field, value in ASKED.get(name, {}).items():
                config.pop(field, None)
                if value is not None or field == "rotary_emb_scale_base":
                    config[field] = value
            (folder / "config.json").write_text(json.dumps(config))
            # Gemma's converters count its tokens; the vocabulary itself is left out.
            if not (folder / "tokenizer.json").exists():
                (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece", "vocab": words}, "added_tokens": []}))
            convert(folder, HERE / f"{name}.gguf", name)


main()
