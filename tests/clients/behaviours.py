"""What clients of llama.cpp's and vLLM's servers rely on, asked of ours: behaviours.py PROGRAM.

The groups are those of llama.cpp's own server tests, as far as requests and answers are OpenAI's: basic,
completion, ignore_eos, context, chat, embedding, rerank, security, tokenize, metrics, slots. What is not
there (grammars, logprobs, biases, tools) has to be refused by name. The standard library is all it needs.
"""

import base64
import concurrent.futures
import contextlib
import http.client
import json
import math
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

PROGRAM = sys.argv[1]
PROMPT = "This package provides"
CHAT = [{"role": "user", "content": PROMPT}]
ROLES = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[/]{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"


class Answer:
    def __init__(self, response):
        self.status, self.headers, self.bytes = response.status, response.headers, response.read()

    @property
    def json(self):
        return json.loads(self.bytes)

    @property
    def text(self):
        return self.json["choices"][0]["text"]

    @property
    def chunks(self):
        """Those of a stream, which ends with `[DONE]`."""
        assert self.status == 200 and self.headers["Content-Type"].startswith("text/event-stream"), self.bytes
        events = self.bytes.decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""], events[-3:]
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2] if not event.startswith(":")]

    def refuses(self, param=None, status=400, kind="invalid_request_error"):
        """An error as OpenAI's clients read it, which names the field."""
        assert self.status == status, (self.status, self.bytes)
        error = self.json["error"]
        assert error["type"] == kind and error["message"], error
        assert param is None or (error["param"] == param and param in error["message"]), error
        return error["message"]


class Server:
    def __init__(self, process, address):
        self.process, self.address = process, address

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection(self.address, timeout=120)
        headers = {"Content-Type": "application/json"} | (headers or {}) if body is not None else headers or {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = Answer(connection.getresponse())
        connection.close()
        return answer

    def get(self, path, **headers):
        return self.ask("GET", path, headers=headers)

    def post(self, path, **body):
        return self.ask("POST", path, body)

    def complete(self, prompt=PROMPT, **body):
        return self.post("/v1/completions", prompt=prompt, **{"temperature": 0, "max_tokens": 8} | body)

    def chat(self, messages=CHAT, **body):
        return self.post("/v1/chat/completions", messages=messages, **{"temperature": 0, "max_tokens": 8} | body)

    def metric(self, name):
        lines = [line for line in self.get("/metrics").bytes.decode().splitlines() if line.startswith(name + "{")]
        assert lines, name
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@contextlib.contextmanager
def server(*flags):
    """A server of the demo model with these flags; a signal ends it, with status 0."""
    command = [PROGRAM, "serve", "--port", "0", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    said = ""
    for line in process.stderr:
        said += line
        if found := re.search(r"answers at http://([^/]*)/v1", line):
            break
    else:
        raise SystemExit(said)
    try:
        yield Server(process, found[1])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.stderr.close()


def text_of(chunks):
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or ""
                   for chunk in chunks for choice in chunk["choices"])


def at_once(*calls):
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def eventually(done):
    for _ in range(600):
        if done():
            return
        time.sleep(0.05)
    raise AssertionError("it does not come")


def basic(s):
    for path in ["/health", "/live", "/ready"]:
        assert s.get(path).status == 200, path
    models = s.get("/v1/models").json["data"]
    assert [model["id"] for model in models] == ["demo"] and models[0]["max_model_len"] > 0, models
    page = s.get("/")
    assert page.headers["Content-Type"].startswith("text/html") and b"<!doctype html>" in page.bytes.lower()
    for path, status in [("/nothing", 404), ("/v1/completions", 405)]:
        s.get(path).refuses(status=status)
    with server("--served-model-name", "one", "--served-model-name", "two") as named:
        assert [m["id"] for m in named.get("/v1/models").json["data"]] == ["one", "two"]
        assert named.complete(model="two").json["model"] == "two"
        assert "one, two" in named.complete(model="demo").refuses("model", 404)


def completion(s):
    for tokens in [1, 8, 33]:
        whole = s.complete(max_tokens=tokens, ignore_eos=True)
        usage = whole.json["usage"]
        assert usage["completion_tokens"] == tokens and whole.json["choices"][0]["finish_reason"] == "length"
        assert usage["total_tokens"] == usage["prompt_tokens"] + tokens
        stream = s.complete(max_tokens=tokens, ignore_eos=True, stream=True).chunks
        assert text_of(stream) == whole.text and len({chunk["id"] for chunk in stream}) == 1
    for n, body in enumerate([{}, {"stream_options": {"include_usage": True}}]):
        chunks = s.complete(stream=True, **body).chunks
        assert (chunks[-1]["choices"] == []) == bool(body)
        if body:
            assert chunks[-1]["usage"]["completion_tokens"] == 8 and all(c["usage"] is None for c in chunks[:-1])
    every = s.complete(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}).chunks
    counts = [chunk["usage"]["completion_tokens"] for chunk in every]
    assert counts == sorted(counts) and counts[-1] == 8, counts
    same = {s.complete(temperature=1, seed=42).text for _ in range(4)}
    other = {s.complete(temperature=1, seed=seed, max_tokens=16).text for seed in range(4)}
    assert len(same) == 1 and len(other) > 1
    # A prompt that is there already, and one that is not.
    long = "A library for reading and writing files of many formats. " * 6
    first, _, again = s.complete(long), s.complete("The GNU"), s.complete(long)
    assert first.text == again.text and again.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    ids = s.post("/tokenize", prompt=PROMPT).json["tokens"]
    texts = [choice["text"] for choice in s.complete([PROMPT, PROMPT]).json["choices"]]
    texts += [choice["text"] for choice in s.complete([ids, ids]).json["choices"]]
    texts += [choice["text"] for choice in s.complete([PROMPT, ids]).json["choices"]] + [s.complete(ids).text]
    assert len(texts) == 7 and set(texts) == {s.complete().text}
    whole = s.complete(max_tokens=24, ignore_eos=True).text
    stop = whole[len(whole) // 2:][:3]
    for stream in [False, True]:
        answer = s.complete(max_tokens=24, ignore_eos=True, stop=[stop, "never"], stream=stream)
        choice = answer.chunks[-1]["choices"][0] if stream else answer.json["choices"][0]
        assert (text_of(answer.chunks) if stream else answer.text) == whole.split(stop)[0], whole
        assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
    several = s.complete(n=3, temperature=1, seed=1).json["choices"]
    assert [choice["index"] for choice in several] == [0, 1, 2] and len({choice["text"] for choice in several}) > 1
    for name, value in [("logprobs", 5), ("logit_bias", {"5": -100}), ("mirostat", 2), ("dry_multiplier", 0.8),
                        ("xtc_probability", 0.5), ("typical_p", 0.5), ("presence_penalty", 1), ("min_tokens", 4),
                        ("response_format", {"type": "json_object"}), ("structured_outputs", {"regex": "a"})]:
        s.complete(**{name: value}).refuses(name)
    for name in ["grammar", "n_predict", "n_probs", "cache_prompt", "id_slot", "json_schema", "samplers"]:
        assert "not a field" in s.complete(**{name: 1}).refuses(name)


def results_do_not_depend_on_batches(s):
    prompt = "A library for reading files. " * 8
    want = s.complete(prompt, max_tokens=16).text
    for flags in [["--max-step-tokens", "16"], ["--max-step-tokens", "33", "--max-num-seqs", "1"], ["--no-prefix-cache"]]:
        with server(*flags) as other:
            assert other.complete(prompt, max_tokens=16).text == want, flags
            texts = [answer.text for answer in at_once(*[lambda: other.complete(prompt, max_tokens=16)] * 5)]
            assert set(texts) == {want}, flags


def ignore_eos(s):
    until = s.complete(max_tokens=200)
    on = s.complete(max_tokens=200, ignore_eos=True).json["usage"]["completion_tokens"]
    assert on == 200 and until.json["choices"][0]["finish_reason"] in ["stop", "length"]
    if until.json["choices"][0]["finish_reason"] == "stop":
        assert until.json["usage"]["completion_tokens"] < 200


def context(_):
    with server("--max-context", "64") as s:
        assert s.get("/v1/models").json["data"][0]["max_model_len"] == 64
        prompt = s.post("/tokenize", prompt=PROMPT).json["count"]
        room = 64 - prompt
        whole = s.complete(max_tokens=room, ignore_eos=True).json
        assert (whole["usage"]["total_tokens"], whole["choices"][0]["finish_reason"]) == (64, "length")
        for stream in [False, True]:
            # Nothing is shifted out of the context, and no stream is begun that cannot end.
            for body in [{"max_tokens": room + 1}, {"prompt": PROMPT * 40}]:
                said = s.complete(stream=stream, **body)
                assert "64" in said.refuses()
                error = said.json["error"]
                assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
            long = s.chat([{"role": "user", "content": PROMPT * 40}], stream=stream)
            assert long.json["error"]["code"] == "context_length_exceeded" and long.status == 400
        # A conversation that names no number has all the room there is.
        full = s.post("/v1/chat/completions", messages=CHAT, temperature=0, ignore_eos=True).json
        assert full["usage"]["total_tokens"] == 64 and full["choices"][0]["finish_reason"] == "length"
        assert s.post("/v1/embeddings", input=PROMPT * 40).status == 400
        kept = s.complete(PROMPT * 40, truncate_prompt_tokens=10, max_tokens=1).json
        assert kept["usage"]["prompt_tokens"] == 10


def chat(s):
    whole = s.chat(max_tokens=12).json
    choice = whole["choices"][0]
    assert whole["object"] == "chat.completion" and choice["message"]["role"] == "assistant"
    chunks = s.chat(max_tokens=12, stream=True).chunks
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in c["choices"][0]["delta"] for c in chunks[1:]) and chunks[-1]["choices"][0]["finish_reason"]
    assert text_of(chunks) == choice["message"]["content"]
    assert [c["index"] for c in s.chat(n=4, temperature=1).json["choices"]] == [0, 1, 2, 3]
    assert s.chat(max_completion_tokens=3, max_tokens=None, ignore_eos=True).json["usage"]["completion_tokens"] == 3
    for messages in [None, [], "x", 7, [7], [{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": 7}],
                     [{"role": "user", "content": [{"type": "text"}]}], [{"role": 3, "content": "x"}]]:
        assert s.chat(messages).status == 400, messages
    for name, value in [("tools", [{"type": "function", "function": {"name": "f"}}]), ("logprobs", True),
                        ("top_logprobs", 3), ("tool_choice", "required"), ("audio", {}), ("store", True)]:
        s.chat(**{name: value}).refuses(name)
    with server("--chat-template", os.path.join(FOLDER, "roles.jinja")) as t:
        ask = lambda **body: t.post("/detokenize", tokens=t.post("/tokenize", **body).json["tokens"]).json["prompt"]
        said = CHAT + [{"role": "assistant", "content": "Well"}]
        assert ask(messages=CHAT) == f"[user]{PROMPT}[/][assistant]"
        assert ask(messages=CHAT, add_generation_prompt=False) == f"[user]{PROMPT}[/]"
        assert ask(messages=said, continue_final_message=True) == f"[user]{PROMPT}[/][assistant]Well"
        t.chat(said, continue_final_message=True, add_generation_prompt=True).refuses()
        answer = t.chat(return_token_ids=True).json
        tokens = t.post("/tokenize", messages=CHAT).json["tokens"]
        assert answer["choices"][0]["prompt_token_ids"] == tokens and answer["usage"]["prompt_tokens"] == len(tokens)
        first, again = t.chat(CHAT * 9).json, t.chat(CHAT * 9).json
        cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in (first, again)]
        assert cached[0] < cached[1] < again["usage"]["prompt_tokens"], cached


def embedding(s):
    ask = lambda **body: s.post("/v1/embeddings", **body)
    one = ask(input="a library").json
    vector = one["data"][0]["embedding"]
    assert len(one["data"]) == 1 and abs(math.fsum(x * x for x in vector) - 1) < 1e-3
    ids = s.post("/tokenize", prompt="a library").json["tokens"]
    assert ask(input=ids).json["data"][0]["embedding"] == vector
    many = ask(input=["a library", "a program", ids, "a library"]).json
    assert [row["index"] for row in many["data"]] == [0, 1, 2, 3]
    assert [row["embedding"] == vector for row in many["data"]] == [True, False, True, True]
    usage = [answer["usage"] for answer in (one, many)]
    assert all(u["prompt_tokens"] == u["total_tokens"] for u in usage) and usage[0]["prompt_tokens"] == len(ids)
    packed = ask(input="a library", encoding_format="base64").json["data"][0]["embedding"]
    floats = struct.unpack(f"<{len(vector)}f", base64.b64decode(packed))
    assert all(abs(a - b) < 1e-7 for a, b in zip(floats, vector))
    for bad in [[], {}, True, 5, [None], ["a", 5], [[]], [[-1]], [[10**9]]]:
        assert ask(input=bad).status == 400, bad
    ask().refuses("input")
    ask(input="x", encoding_format="hex").refuses("encoding_format")
    before = s.metric("vllm:generation_tokens_total")
    ask(input="x" * 50)
    assert s.metric("vllm:generation_tokens_total") == before


def rerank(s):
    documents = ["network daemon", "a library for images", "pictures in Python", "images"]
    ask = lambda path="/v1/rerank", **body: s.post(path, **{"query": "images", "documents": documents} | body)
    for path in ["/rerank", "/v1/rerank", "/v2/rerank"]:
        results = ask(path).json["results"]
        scores = [row["relevance_score"] for row in results]
        assert len(results) == 4 and scores == sorted(scores, reverse=True) and results[0]["index"] == 3, results
    for top, count in [(1, 1), (3, 3), (4, 4), (99, 4)]:
        assert len(ask(top_n=top).json["results"]) == count, top
    for bad in [None, [], "x", 5, [5], [None]]:
        assert ask(documents=bad).status == 400, bad
    ask(query=None).refuses("query")
    usage = ask().json["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] > 0


def security(_):
    keys = os.path.join(FOLDER, "keys")
    with open(keys, "w") as file:
        file.write("team:sk-secret\n")
    with server("--api-key-file", keys) as s:
        for path in ["/health", "/live", "/ready"]:
            assert s.get(path).status == 200, path
        body = {"prompt": PROMPT, "max_tokens": 1}
        for headers in [{}, {"Authorization": "Bearer sk-other"}, {"Authorization": "sk-secret"}, {"x-api-key": ""},
                        {"Authorization": "Bearer sk-secre"}, {"Authorization": "Bearer sk-secret1"}]:
            for method, path in [("POST", "/v1/completions"), ("POST", "/tokenize"), ("GET", "/metrics"), ("GET", "/load")]:
                answer = s.ask(method, path, body if method == "POST" else None, headers)
                assert "sk-secret" not in answer.refuses(status=401, kind="authentication_error")
        for headers in [{"Authorization": "Bearer sk-secret"}, {"x-api-key": "sk-secret"}]:
            assert s.ask("POST", "/v1/completions", body, headers).status == 200
        # Pages of other sites may not ask: no answer allows their origin.
        for method in ["OPTIONS", "POST"]:
            headers = {"Origin": "http://elsewhere", "Access-Control-Request-Method": "POST"}
            answer = s.ask(method, "/v1/completions", body, headers | {"Authorization": "Bearer sk-secret"})
            assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def tokenize(s):
    for text in ["What is the capital of France ?", "naïve \u4f60\u597d \U0001f600", "  two  blanks\n\n\ttab"]:
        tokens = s.post("/tokenize", prompt=text, add_special_tokens=False).json
        assert tokens["count"] == len(tokens["tokens"])
        assert s.post("/detokenize", tokens=tokens["tokens"]).json["prompt"].strip() == text.strip()
    words = s.post("/tokenize", prompt=PROMPT, return_token_strs=True).json
    assert len(words["token_strs"]) == words["count"] and "package" in "".join(words["token_strs"])
    with_, without = (s.post("/tokenize", prompt="x", add_special_tokens=on).json["tokens"] for on in (True, False))
    assert with_[len(with_) - len(without):] == without
    for body in [{}, {"prompt": 5}, {"prompt": "x", "messages": CHAT}]:
        assert s.post("/tokenize", **body).status == 400, body
    for bad in [None, "x", ["x"], [-1], [10**9]]:
        assert s.post("/detokenize", tokens=bad).status == 400, bad


def metrics(s):
    before, prompts = s.metric("vllm:generation_tokens_total"), s.metric("vllm:prompt_tokens_total")
    usage = [s.complete(max_tokens=count, ignore_eos=True).json["usage"] for count in (1, 5, 16)]
    assert s.metric("vllm:generation_tokens_total") - before == 22
    assert s.metric("vllm:prompt_tokens_total") - prompts == sum(one["prompt_tokens"] for one in usage)
    eventually(lambda: s.metric("vllm:num_requests_running") + s.metric("vllm:num_requests_waiting") == 0)
    text = s.get("/metrics").bytes.decode()
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r"[a-z0-9:_]+\{[^}]*\} \S+", line), line
    assert s.get("/load").json == {"server_load": 0}


def slots(_):
    with server("--max-num-seqs", "1", "--max-queued", "3") as s:
        alone = s.complete(max_tokens=20, ignore_eos=True).text
        texts = [answer.text for answer in at_once(*[lambda: s.complete(max_tokens=20, ignore_eos=True)] * 3)]
        assert set(texts) == {alone}
        s.complete(n=5).refuses()
        # A client that keeps the place, and goes away.
        body = json.dumps({"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 4}).encode()
        for _ in range(3):
            host, port = s.address.split(":")
            away = socket.create_connection((host, int(port)))
            away.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                         b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            assert away.recv(15) == b"HTTP/1.1 200 OK"
            full = s.complete()
            full.refuses(status=429, kind="rate_limit_error")
            assert 1 <= int(full.headers["Retry-After"]) <= 60
            away.close()
            eventually(lambda: s.get("/load").json["server_load"] == 0)
            assert s.complete(max_tokens=20, ignore_eos=True).text == alone


with tempfile.TemporaryDirectory() as FOLDER:
    with open(os.path.join(FOLDER, "roles.jinja"), "w") as template:
        template.write(ROLES)
    groups = [basic, completion, results_do_not_depend_on_batches, ignore_eos, context, chat, embedding, rerank,
              security, tokenize, metrics, slots]
    with server("--max-num-seqs", "8") as running:
        for group in groups:
            began = time.monotonic()
            group(running)
            print(f"{group.__name__} ok, {time.monotonic() - began:.1f} s", flush=True)
