"""An environment that an OpenEnv server plays, with nothing but the standard library:

    env: {command: [python3, openenv_adapter.py], settings: {url: "ws://127.0.0.1:8000/ws", max_turns: 8}}

With ws:// each process has a session of its own, so that many episodes play at once. With http://
(POST /reset and /step) the server keeps one environment for all, so that is for servers without
sessions, and for one episode at a time. `action` is the field of the action that gets the text
(default: message), `text` the field of the observation that the policy hears (default: all of it,
as JSON), `name` what the run calls it.
"""
import base64
import json
import os
import socket
import struct
import sys
import urllib.error
import urllib.parse
import urllib.request

TIMEOUT = 600  # the deadline of a call is Tailrace's


class Http:
    def __init__(self, url):
        self.url = url.rstrip("/")

    def ask(self, kind, body):
        body = json.dumps({"action": body} if kind == "step" else body).encode()
        request = urllib.request.Request(f"{self.url}/{kind}", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return json.load(answer)


class WebSocket:
    def __init__(self, url):
        place = urllib.parse.urlsplit(url)
        self.socket = socket.create_connection((place.hostname, place.port or 80), TIMEOUT)
        self.file = self.socket.makefile("rb")
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET {place.path or '/ws'} HTTP/1.1\r\nHost: {place.netloc}\r\n"
                             "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                             f"Sec-WebSocket-Key: {key}\r\n\r\n").encode())
        status = self.file.readline()
        if b" 101 " not in status:
            raise OSError(f"{url}: {status!r}")
        while self.file.readline().strip():
            pass

    def send(self, data, kind=1):  # kinds: 1 text, 9 ping, 10 pong
        length, mask = len(data), os.urandom(4)
        head = bytes([0x80 | kind, 0x80 | (length if length < 126 else 126 if length < 65536 else 127)])
        head += struct.pack(">H", length) if 126 <= length < 65536 else b""
        head += struct.pack(">Q", length) if length >= 65536 else b""
        self.socket.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def read(self, count):
        data = self.file.read(count)
        if len(data) < count:
            raise OSError("the server has closed the session")
        return data

    def receive(self):
        message = b""
        while True:
            first, length = self.read(2)
            length = struct.unpack(">H", self.read(2))[0] if length == 126 else \
                struct.unpack(">Q", self.read(8))[0] if length == 127 else length
            data, kind = self.read(length), first & 15
            if kind == 8:
                raise OSError("the server has closed the session")
            if kind == 9:
                self.send(data, 10)
            if kind < 3:
                message += data
                if first & 0x80:
                    return message

    def ask(self, kind, body):
        self.send(json.dumps({"type": kind, "data": body}).encode())
        answer = json.loads(self.receive())
        if answer.get("type") == "error":
            raise OSError(json.dumps(answer.get("data")))
        return answer.get("data", answer)


def heard(answer):
    observation = answer["observation"]
    field = settings.get("text")
    text = observation[field] if field else json.dumps(observation, ensure_ascii=False)
    return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)


def ask(kind, body):
    global server
    if server is None:
        server = WebSocket(url) if url.startswith("ws://") else Http(url)
    return server.ask(kind, body)


def info(call):
    global url
    settings.update(call["settings"])
    url = str(settings.get("url", "http://127.0.0.1:8000"))
    if not url.startswith(("ws://", "http://", "https://")):
        return {"error": f"url is {url}; it begins with ws://, http:// or https://"}
    return {"name": str(settings.get("name", "openenv")), "max_turns": settings.get("max_turns", 8),
            "max_action_tokens": settings.get("max_action_tokens", 256)}


def reset(call):
    return {"text": heard(ask("reset", {"seed": call["seed"] % 2**31}))}


def step(call):
    answer = ask("step", {settings.get("action", "message"): call["action"]})
    return {"text": heard(answer), "reward": float(answer.get("reward") or 0),
            "terminated": bool(answer.get("done"))}


server, settings = None, {}
calls = {f.__name__: f for f in (info, reset, step)}
for line in sys.stdin:
    call = json.loads(line)
    try:
        answer = calls.get(call["call"], lambda call: {"unsupported": True})(call)
    except (OSError, ValueError, KeyError, TypeError) as error:
        server = None  # the next episode has a session of its own
        answer = {"error": f"{url}: {type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
