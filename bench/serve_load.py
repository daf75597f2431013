"""Clients of a server, and servers, for bench/serve.py; the standard library alone."""

import http.client
import json
import os
import random
import select
import socket
import subprocess
import threading
import time

# Ids of ordinary tokens of SmolLM2; the demo model has fewer.
FIRST, LAST = 1000, 40000


def dice(seed):
    return random.Random(seed)


def ids(dice, count, last=LAST):
    return [dice.randint(min(FIRST, last // 2), last) for _ in range(count)]


def percentile(values, percent):
    values = sorted(values)
    return values[min(len(values) - 1, round(percent / 100 * (len(values) - 1)))]


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Server:
    """A server on a port of its own, ended with the block."""

    def __init__(self, command, log):
        self.port = free_port()
        words = [word.replace("{port}", str(self.port)) for word in command]
        self.log = open(log, "a")
        self.process = subprocess.Popen(words, stdout=self.log, stderr=subprocess.STDOUT)

    def __enter__(self):
        for _ in range(1200):
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended with status {self.process.returncode}: {self.log.name}")
            try:
                if self.status("/health") == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.1)
        raise SystemExit(f"the server does not become ready: {self.log.name}")

    def status(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.log.close()


class Answer:
    """When the tokens of an answer came, in seconds behind the request."""

    def __init__(self, times):
        if not times:
            raise SystemExit("an answer without a token")
        self.times, self.first = times, times[0]

    @property
    def per_token(self):
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1)

    @property
    def gaps(self):
        return [after - before for before, after in zip(self.times, self.times[1:])]


def ask(server, prompt, tokens, port=None):
    """A streamed completion; every event with a choice that has no end counts as a token."""
    connection = http.client.HTTPConnection("127.0.0.1", port or server.port, timeout=600)
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    began, times = time.monotonic(), []
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"{response.status}: {response.read()[:400]}")
    for line in response:
        if line.startswith(b"data: {"):
            if b'"error"' in line[:16]:
                raise SystemExit(line.decode())
            if json.loads(line[6:]).get("choices"):
                times.append(time.monotonic() - began)
    connection.close()
    # The end comes with the last token of one server, and in an event of its own of another.
    return Answer(times[:tokens])


def open_loop(server, plan):
    """Requests at their times; their answers, and the seconds until the last one."""
    answers, threads, began = [None] * len(plan), [], time.monotonic()

    def one(place, prompt, tokens):
        answers[place] = ask(server, prompt, tokens)

    for place, (at, prompt, tokens) in enumerate(plan):
        time.sleep(max(0, began + at - time.monotonic()))
        threads.append(threading.Thread(target=one, args=(place, prompt, tokens)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return whole(answers), time.monotonic() - began


def closed_loop(server, prompts, tokens, clients):
    """Requests by so many clients, each of which asks when it was answered."""
    left, answers, began = list(reversed(prompts)), [], time.monotonic()

    def client():
        while True:
            try:
                prompt = left.pop()
            except IndexError:
                return
            answers.append(ask(server, prompt, tokens))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(answers) < len(prompts):
        raise SystemExit("a request failed")
    return answers, time.monotonic() - began


def whole(answers):
    if None in answers:
        raise SystemExit("a request failed")
    return answers


def streams(server, dice, count, tokens):
    """All times between tokens of so many streams at once."""
    plan = [(0, ids(dice, 64), tokens) for _ in range(count)]
    answers, _ = open_loop(server, plan)
    return [gap for answer in answers for gap in answer.gaps]


class Prompts:
    """Long prompts, one each so many seconds, until the block ends."""

    def __init__(self, server, dice, length, every):
        self.server, self.every, self.answered, self.failed = server, every, 0, None
        self.prompts = [ids(dice, length) for _ in range(40)]
        self.over = threading.Event()

    def one(self):
        try:
            ask(self.server, self.prompts.pop(), 4)
            self.answered += 1
        except (OSError, http.client.HTTPException, SystemExit) as error:
            # Those that wait when all is over are none of it.
            self.failed = self.failed or (None if self.over.is_set() else str(error))

    def run(self):
        self.over.wait(0.5)
        while not self.over.is_set() and self.prompts:
            threading.Thread(target=self.one, daemon=True).start()
            self.over.wait(self.every)

    def __enter__(self):
        threading.Thread(target=self.run, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.over.set()
        if self.failed:
            raise SystemExit(f"a long prompt: {self.failed}")


def resident(pid):
    """Megabytes of a process."""
    with open(f"/proc/{pid}/status") as status:
        line = next(line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6


def resident_of_chat(command):
    """Megabytes of a conversation that waits for its second line."""
    chat = subprocess.Popen(command + ["--max-new-tokens", "16"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL)
    try:
        chat.stdin.write(b"This package provides\n")
        chat.stdin.flush()
        last = time.monotonic() + 10
        while time.monotonic() < last:
            if select.select([chat.stdout], [], [], 0.2)[0] and os.read(chat.stdout.fileno(), 1 << 16):
                last = min(last, time.monotonic() + 1)
        return resident(chat.pid)
    finally:
        chat.kill()
        chat.wait()


def ticks(pid):
    """Seconds of processors that a process has taken."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle(server, count, seconds):
    """Percent of a core that a server takes with so many connections that ask nothing."""
    open_ = [http.client.HTTPConnection("127.0.0.1", server.port) for _ in range(count)]
    for connection in open_:
        connection.request("GET", "/health")
        connection.getresponse().read()
    time.sleep(1)
    before, began = ticks(server.process.pid), time.monotonic()
    time.sleep(seconds)
    share = 100 * (ticks(server.process.pid) - before) / (time.monotonic() - began)
    for connection in open_:
        connection.request("GET", "/health")
        if connection.getresponse().status != 200:
            raise SystemExit("a connection was not kept")
        connection.close()
    return share


def start_to_first_token(program):
    """Seconds from the start of the process to the first token of the demo model over HTTP."""
    port = free_port()
    began = time.monotonic()
    command = [program, "serve", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None and time.monotonic() < began + 60:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                first = time.monotonic()
                answer = ask(None, "This package provides", 1, port)
                return first - began + answer.first
            except OSError:
                time.sleep(0.001)
        raise SystemExit("the server does not start")
    finally:
        process.terminate()
        process.wait()
