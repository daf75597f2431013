"""LiteLLM as a client: litellm_client.py ADDRESS."""

import sys

import litellm

asked = {
    "model": "openai/demo",
    "api_base": sys.argv[1] + "/v1",
    "api_key": "unused",
    "messages": [{"role": "user", "content": "This package provides"}],
    "max_tokens": 12,
    "temperature": 0.5,
    "seed": 3,
}
text = litellm.completion(**asked).choices[0].message.content
assert text
pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(stream=True, **asked)]
assert "".join(pieces) == text, (pieces, text)
print("litellm ok")
