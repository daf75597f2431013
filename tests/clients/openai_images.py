"""OpenAI's own client with a pipeline that makes pictures: openai_images.py ADDRESS."""

import base64
import struct
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="unused", max_retries=0)
model = client.models.list().data[0].id


def ask(steps=2, **more):
    extra = {"num_inference_steps": steps, **more.pop("extra", {})}
    answer = client.images.generate(model=model, prompt="a fox in the snow", extra_body=extra, **more)
    return [base64.b64decode(one.b64_json) for one in answer.data], answer


files, answer = ask(size="40x32", n=2, extra={"seed": 7, "guidance_scale": 5, "negative_prompt": "fog"})
assert answer.size == "40x32" and answer.output_format == "png" and answer.created > 0, answer
assert len(files) == 2 and files[0] != files[1], len(files)
for file in files:
    assert file.startswith(b"\x89PNG\r\n"), file[:8]
    assert struct.unpack(">II", file[16:24]) == (40, 32), file[:32]
# The second picture has the next seed, and the bits that it has alone.
alone, _ = ask(size="40x32", extra={"seed": 8, "guidance_scale": 5, "negative_prompt": "fog"})
assert alone == files[1:], "the second picture is another one alone"
auto, answer = ask(size="auto", quality="auto", response_format="b64_json")
width, height = map(int, answer.size.split("x"))
assert struct.unpack(">II", auto[0][16:24]) == (width, height), answer.size
for wrong, param in [({"response_format": "url"}, "response_format"), ({"size": "41x32"}, "size"), ({"n": 11}, "n")]:
    try:
        ask(**wrong)
        raise SystemExit(f"{wrong} was taken")
    except openai.BadRequestError as error:
        assert error.param == param, error
# A picture to begin with, and where it may change.
edited = client.images.edit(
    model=model, image=("fox.png", files[0]), mask=("mask.png", files[1]), prompt="a fox in the rain", n=2,
    extra_body={"num_inference_steps": 4, "seed": 7, "strength": 0.6},
)
assert edited.size == "40x32" and len(edited.data) == 2, edited.size
for one in edited.data:
    file = base64.b64decode(one.b64_json)
    assert struct.unpack(">II", file[16:24]) == (40, 32) and file != files[0], file[:32]
try:
    client.images.edit(model=model, image=("fox.png", files[0]), prompt="a fox", size="1024x1024")
    raise SystemExit("another size was taken")
except openai.BadRequestError as error:
    assert error.param == "size", error
try:
    client.chat.completions.create(model=model, messages=[{"role": "user", "content": "x"}])
    raise SystemExit("a pipeline answered a conversation")
except openai.BadRequestError as error:
    assert "/v1/images/generations" in str(error), error
print("openai", openai.__version__, "ok: pictures")
