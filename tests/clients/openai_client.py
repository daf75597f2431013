"""OpenAI's own client, in the line that this environment has: openai_client.py ADDRESS."""

import inspect
import json
import sys
import urllib.request

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="unused", max_retries=0)
messages = [{"role": "user", "content": "This package provides"}]
sampled = {"max_tokens": 16, "temperature": 0.7, "seed": 7}

model = client.models.list().data[0].id
whole = client.chat.completions.create(model=model, messages=messages, **sampled)
text = whole.choices[0].message.content
assert text and whole.usage.completion_tokens <= 16, whole

stream = client.chat.completions.create(
    model=model, messages=messages, stream=True, stream_options={"include_usage": True}, **sampled
)
chunks = list(stream)
assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text, chunks
assert chunks[0].choices[0].delta.role == "assistant"
assert chunks[-1].usage == whole.usage or chunks[-1].usage.total_tokens == whole.usage.total_tokens

several = client.chat.completions.create(model=model, messages=messages, n=3, **sampled)
assert [c.index for c in several.choices] == [0, 1, 2]
assert several.choices[0].message.content == text

completion = client.completions.create(model=model, prompt="This package provides", stop=["."], **sampled)
assert "." not in completion.choices[0].text, completion

# Base64 by default, which the client decodes.
vectors = client.embeddings.create(model=model, input=["a library", "a program"])
assert len(vectors.data) == 2 and abs(sum(x * x for x in vectors.data[0].embedding) - 1) < 1e-3

try:
    client.chat.completions.create(model="other", messages=messages)
    raise SystemExit("a model that is not there answered")
except openai.NotFoundError as error:
    assert error.code == "model_not_found", error
try:
    client.chat.completions.create(model=model, messages=messages, temperature=-1)
    raise SystemExit("a temperature of -1 was taken")
except openai.BadRequestError as error:
    assert error.param == "temperature", error
# Every field that this line of the client can send is in the server's tables: honoured, without effect or refused.
paths = json.load(urllib.request.urlopen(sys.argv[1] + "/openapi.json"))["paths"]
calls = {
    "/v1/chat/completions": client.chat.completions.create,
    "/v1/completions": client.completions.create,
    "/v1/embeddings": client.embeddings.create,
}
for path, create in calls.items():
    schema = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    sent = set(inspect.signature(create).parameters) - {"extra_headers", "extra_query", "extra_body", "timeout"}
    assert len(sent) > 4 and sent <= set(schema["properties"]), (path, sent - set(schema["properties"]))
print("openai", openai.__version__, "ok")
