#!/usr/bin/env python3
"""GGUF files of the goldens beside, by llama.cpp's own converter: in bf16, which holds their values, and without
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


def convert(folder, out, name):
    import gguf
    import torch
    import conversion
    from conversion.base import ModelBase

    fields = ModelBase.load_hparams(folder, False)
    of_class = conversion.get_model_class(fields["architectures"][0])
    with torch.inference_mode():
        kind = gguf.LlamaFileType.MOSTLY_BF16
        model = of_class(folder, kind, out, is_big_endian=False, use_temp_file=False, eager=True)
        for one in (model, getattr(model, "impl", model)):
            one.set_vocab = lambda: None
        model.write()
    print(f"{name}: {out.stat().st_size} bytes")


def main():
    source, *names = sys.argv[1:]
    sys.path[:0] = [source, f"{source}/gguf-py"]
    logging.disable(logging.CRITICAL)
    for name in names or sorted(file.stem for file in HERE.glob("*.gguf")):
        golden = HERE.parent / "golden" / name
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            for file in golden.iterdir():
                if file.name != "config.json":
                    os.symlink(file, folder / file.name)
            config = json.loads((golden / "config.json").read_text())
            for field, value in CHANGED.get(name, {}).items():
                config.pop(field, None)
                if value is not None:
                    config[field] = value
            (folder / "config.json").write_text(json.dumps(config))
            # Gemma's converters count its tokens; the vocabulary itself is left out.
            words = {str(i): i for i in range(config["vocab_size"])}
            if not (folder / "tokenizer.json").exists():
                (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": words}, "added_tokens": []}))
            convert(folder, HERE / f"{name}.gguf", name)


main()
