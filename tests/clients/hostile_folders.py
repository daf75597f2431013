"""Model folders that mean ill: hostile_folders.py PROGRAM DEMO-FOLDER.

Each is the demo model with one file changed. A server of it either does not start, with status 1 and an error
that names the folder, or it answers: then /health stays well, and what is wrong fails the request that needs
it. Never a panic or a signal. What the honest demo model takes is measured first: above that the start and
each request take less than a second of the processor (the start more where the file is larger by megabytes),
and all of it less than 100 MB.
"""

import http.client
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM, DEMO = sys.argv[1], pathlib.Path(sys.argv[2])
# Of the processor, of all threads: what else runs on the machine does not count.
SECONDS = 1
BYTES = 100_000_000
# Bytes a second that a start may take to read, on top: debug builds read lists of tokens so.
READ = 2_000_000
# By the clock, for a busy machine: what hangs without work ends here.
PATIENCE = 20
# The program maps its own file and keeps rooms for threads: bytes of addresses, not of memory.
ADDRESSES = 6 << 30
TICKS = os.sysconf("SC_CLK_TCK")

deep = "[" * 100_000
tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
config = json.loads((DEMO / "config.json").read_text())


def changed(**parts):
    return json.dumps(tokenizer | parts)


def of_model(**parts):
    return changed(model=tokenizer["model"] | parts)


replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 200}
split = lambda regex: {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
added = lambda n: [{"id": 10**6 + i, "content": f"<{i}>", "single_word": False, "lstrip": False, "rstrip": False,
                    "normalized": False, "special": True} for i in range(n)]
TOKENIZERS = {
    "empty": "",
    "no JSON": "{",
    "deep": deep,
    "a list": "[]",
    "an empty object": "{}",
    "no UTF-8": b"\xff\xfe{}",
    "half": (DEMO / "tokenizer.json").read_bytes()[:-2000],
    "no model": changed(model={}),
    "a strange model": changed(model={"type": "Strange"}),
    "no vocabulary": of_model(vocab={}),
    "ids beyond 32 bits": of_model(vocab={"a": 2**40}),
    "negative ids": of_model(vocab={"a": -1}),
    "ids far apart": of_model(vocab={"a": 0, "b": 2**32 - 1}, merges=[]),
    "merges of what is not there": of_model(merges=[["nothing", "here"]]),
    "chained replaces": changed(normalizer={"type": "Sequence", "normalizers": [replace] * 12}),
    "a long replace": changed(normalizer=replace | {"content": "a" * (1 << 20)}),
    "a regex that doubles": changed(pre_tokenizer=split("(a|aa)+$")),
    "nested repeats": changed(pre_tokenizer=split("((((a{1,100}){1,100}){1,100}){1,100})")),
    "no regex": changed(pre_tokenizer=split("(")),
    "thousands of steps": changed(pre_tokenizer={"type": "Sequence", "pretokenizers": [split("a")] * 5000}),
    "many added tokens": changed(added_tokens=added(200_000)),
    "a template of many ids": changed(post_processor={
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}] * 10_000, "pair": [],
        "special_tokens": {"x": {"id": "x", "ids": [0] * 1000, "tokens": ["a"] * 1000}}}),
}
TEMPLATES = {
    "endless": "{% for i in range(1000000000) %}{{ i }}{% endfor %}",
    "calls itself": "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
    "a long string": "{{ 'x' * 10000000000 }}",
    "doubles": "{% set ns = namespace(a='x') %}{% for i in range(100) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}{{ ns.a }}",
    "lists of lists": "{% set ns = namespace(a=[0]) %}{% for i in range(100) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
    "no syntax": "{% for",
    "deep": "{{ " + "(" * 20_000 + ")" * 20_000 + " }}",
    "deep blocks": "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
    "insides": "{{ messages.__class__.__mro__ }}{{ ''.__init__.__globals__ }}",
    "includes": "{% include '/etc/passwd' %}",
    "a strange filter": "{{ messages | strange }}",
    "an exception": "{{ raise_exception('no') }}",
    "10 MB": "x" * 10_000_000,
    "no UTF-8": b"\xff\xfe",
}
CONFIGS = {
    "no JSON": "{",
    "deep": deep,
    "no layers": json.dumps(config | {"num_hidden_layers": 0}),
    "many layers": json.dumps(config | {"num_hidden_layers": 10**9}),
    "a wide model": json.dumps(config | {"hidden_size": 2**40}),
    "negative heads": json.dumps(config | {"num_attention_heads": -1}),
    "a long context": json.dumps(config | {"max_position_embeddings": 2**62}),
    "a vocabulary of one": json.dumps(config | {"vocab_size": 1}),
    "another model": json.dumps({"model_type": "../../x", "architectures": ["\u001b[31m"]}),
}
GENERATION = {
    "no JSON": "{",
    "a temperature below 0": '{"do_sample": true, "temperature": -1}',
    "no number": '{"do_sample": true, "temperature": "hot"}',
    "stop ids beyond": '{"eos_token_id": [4000000000, -1]}',
}


def limits():
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def at_work(process):
    """Seconds of the processor so far; behind the program's name, the 12th and 13th field."""
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def asks(address, what, process):
    """Requests of a server that started: what fails, fails its request. Their statuses, and their seconds."""
    statuses, seconds = [], []
    for path, body in [("/v1/chat/completions", {"messages": [{"role": "user", "content": "aaaa" * 200}], "max_tokens": 2}),
                       ("/v1/completions", {"prompt": "aaaa" * 200, "max_tokens": 2}),
                       ("/tokenize", {"prompt": "a" * 20_000})]:
        before = at_work(process)
        connection = http.client.HTTPConnection(address, timeout=PATIENCE)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status in (200, 400) and len(said) < 1 << 20, (what, path, answer.status, said[:400])
        assert b"root:" not in said, (what, path)
        statuses.append(answer.status)
        seconds.append(at_work(process) - before)
        connection = http.client.HTTPConnection(address, timeout=PATIENCE)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200, (what, path)
    return statuses, seconds


def file_of(what):
    return what.split(",")[0]


def tries(what, folder, honest=None, size=0):
    """Starts a server of the folder: what came of it, and what it took, which is held against `honest`."""
    log = folder.parent / "log"
    began = time.monotonic()
    with open(log, "wb") as out:
        command = [PROGRAM, "serve", "--model", str(folder), "--port", "0", "--max-num-seqs", "2"]
        process = subprocess.Popen(command, stdout=out, stderr=out, preexec_fn=limits)
    try:
        # What it used of the processor and of memory is known where it is waited for.
        statuses, start, seconds, ended = None, None, [], 0
        while not ended:
            assert time.monotonic() - began < PATIENCE, f"{what}: neither an end nor an address"
            if statuses is None and (found := re.search(rb"answers at http://([^/]*)/v1", log.read_bytes())):
                start = at_work(process.pid)
                statuses, seconds = asks(found[1].decode(), what, process.pid)
                process.send_signal(signal.SIGTERM)
            time.sleep(0.02)
            ended, status, used = os.wait4(process.pid, os.WNOHANG)
        process.returncode = status = os.waitstatus_to_exitcode(status)
    finally:
        # Of a process that has ended it does nothing.
        process.kill()
    start = used.ru_utime + used.ru_stime if start is None else start
    cost = [start, *seconds], 1024 * used.ru_maxrss
    if honest:
        names = {"the start": size / READ, "a chat": 0, "a completion": 0, "tokens": 0}
        parts = zip(names, cost[0], [of + SECONDS + names[name] for name, of in zip(names, honest[0])])
        slow = [f"{name} takes {took:.2f} s, {most:.2f} s are allowed" for name, took, most in parts if took > most]
        assert not slow, f"{what}: {slow}"
        assert cost[1] < honest[1] + BYTES, f"{what}: {cost[1]} bytes, honestly {honest[1]}"
    said = log.read_text(errors="replace")
    assert "panicked" not in said and "\x1b[31m" not in said and len(said) < 1 << 16, f"{what}: {said[:2000]}"
    if statuses is None:
        *before, last = said.strip().splitlines()
        assert status == 1 and last.startswith("error: "), f"{what}: status {status}: {said[-600:]}"
        assert before and folder.name in before[-1] + last, f"{what}: {said}"
        # A file of JSON is named; of a configuration it is the field that is.
        assert file_of(what) != "tokenizer.json" or "tokenizer.json" in last, f"{what}: {last}"
        return last[:160].replace(str(folder), folder.name), cost
    assert status == 0, f"{what}: status {status}: {said[-600:]}"
    return f"answers {statuses}", cost


def judged(what, folder, wrong, honest):
    try:
        size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file() and not path.is_symlink())
        own = sum(path.stat().st_size for path in DEMO.iterdir())
        said, (seconds, bytes_) = tries(what, folder, honest, max(0, size - own))
        print(f"{what} ({max(seconds):.2f} s, {bytes_ / 1e6:.0f} MB): {said}", flush=True)
    except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
        wrong.append(f"{what}: {error!r}")
        print(f"WRONG {wrong[-1]}", flush=True)
    shutil.rmtree(folder)


def main():
    count, wrong = 0, []
    with tempfile.TemporaryDirectory() as room:
        folder = pathlib.Path(room) / "honest-model"
        shutil.copytree(DEMO, folder)
        said, honest = tries("the demo model", folder)
        assert said.startswith("answers "), said
        print(f"the demo model ({max(honest[0]):.2f} s, {honest[1] / 1e6:.0f} MB): {said}", flush=True)
        for file, cases in [("tokenizer.json", TOKENIZERS), ("chat_template.jinja", TEMPLATES),
                            ("config.json", CONFIGS), ("generation_config.json", GENERATION)]:
            for name, content in cases.items():
                folder = pathlib.Path(room) / "hostile-model"
                shutil.copytree(DEMO, folder)
                bytes_ = content if isinstance(content, bytes) else content.encode()
                (folder / file).write_bytes(bytes_)
                judged(f"{file}, {name}", folder, wrong, honest)
                count += 1
        # What is no file: a pipe would keep its reader waiting, a loop of links has no end.
        for file in ["tokenizer.json", "config.json", "chat_template.jinja"]:
            for name, make in [("pipe", os.mkfifo), ("loop", lambda path: os.symlink(path, path)), ("folder", os.mkdir)]:
                folder = pathlib.Path(room) / "hostile-model"
                shutil.copytree(DEMO, folder)
                (folder / file).unlink(missing_ok=True)
                make(folder / file)
                judged(f"{file}, a {name}", folder, wrong, honest)
                count += 1
    print("\n".join(wrong), file=sys.stderr)
    print(f"{count - len(wrong)} hostile folders ok")
    sys.exit(bool(wrong))


main()
