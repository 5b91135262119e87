"""Houses to measure: `vitriol up` in directories of their own, on ports of their own."""

import http.client
import json
import os
import socket
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RELEASE = ROOT / "target" / "release"
MODELS = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma": "gemma-3-270m-q4_k_m.gguf",
}
WORDS = (
    "river stone lantern seven quiet harbour copper winter letter engine garden mirror thunder paper north salt "
    "bridge orchard violin ember falcon meadow glass anchor"
).split()
READY_S = 120


def model(name):
    """The file of a known model, as `vitriol model fetch` keeps it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "vitriol" / "models" / MODELS[name]


class House:
    """`vitriol up` with one model; `arena`: bytes of its KV tier, None without one; `through`: a command that runs it."""

    def __init__(self, name, binaries, model, kv, arena, through=()):
        self.name = name
        self.place = tempfile.TemporaryDirectory(prefix="vb-")
        here = Path(self.place.name)
        tier = f"[kvtier]\nenabled = true\narena_bytes = '{arena}'\n" if arena else ""
        (here / "profile.toml").write_text(f"[engine.main]\nkv_bytes_max = '{kv}'\n{tier}")
        environment = {"PATH": os.environ["PATH"], "HOME": str(here), "NO_COLOR": "1"}
        for variable in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
            (here / variable).mkdir(mode=0o700)
            environment[variable] = str(here / variable)
        # A port that is named keeps its state over restarts of the house.
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.command = [*through, binaries / "vitriol", "up", "--listen", f"127.0.0.1:{port}"]
        self.command += ["--profile", here / "profile.toml", "--model", model]
        self.environment, self.has_tier = environment, bool(arena)
        self.start()

    def start(self):
        here = Path(self.place.name)
        for old in here.glob("XDG_RUNTIME_DIR/**/demiurge.addr"):
            old.unlink()
        self.log = open(here / "up.log", "ab")
        self.process = subprocess.Popen(self.command, env=self.environment, stdout=self.log, stderr=self.log)
        until = time.monotonic() + READY_S
        self.address = None
        while self.address is None or not self.healthy():
            if self.process.poll() is not None or time.monotonic() > until:
                sys.exit(f"{self.name}: not ready; it said:\n{(here / 'up.log').read_text()}")
            time.sleep(0.005)
            found = list(here.glob("XDG_RUNTIME_DIR/**/demiurge.addr"))
            self.address = (found[0].read_text().strip() or None) if found else None
        if self.has_tier:
            self.until("vitriol_engine_tier_attached", 1)

    def request(self, method, path, body=None, session=""):
        connection = http.client.HTTPConnection(self.address, timeout=600)
        headers = {"content-type": "application/json", "x-session-id": session}
        connection.request(method, path, body and json.dumps(body), headers if body else {})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status != 200:
            sys.exit(f"{self.name}: {method} {path}: {answer.status}: {text[:500]}")
        return text

    def healthy(self):
        try:
            connection = http.client.HTTPConnection(self.address, timeout=5)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False

    def metric(self, name):
        for line in self.request("GET", "/metrics").decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        return None

    def until(self, name, value):
        until = time.monotonic() + READY_S
        while self.metric(name) != value:
            if time.monotonic() > until:
                sys.exit(f"{self.name}: {name} did not become {value}")
            time.sleep(0.02)

    def turn(self, session, messages, tokens):
        body = {"messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        began = time.perf_counter()
        answer = json.loads(self.request("POST", "/v1/chat/completions", body, session))
        took = time.perf_counter() - began
        return answer["choices"][0]["message"]["content"], answer["timings"], took

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.log.close()
        self.place.cleanup()

    def first_text(self, session, messages, tokens):
        """Sends the turn as a stream; when its first text came (perf_counter), and its timings."""
        body = {"messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        connection = http.client.HTTPConnection(self.address, timeout=600)
        headers = {"content-type": "application/json", "x-session-id": session}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer, first, timings = connection.getresponse(), None, {}
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                sys.exit(f"{self.name}: {chunk}")
            choices = chunk.get("choices") or [{}]
            if first is None and choices[0].get("delta", {}).get("content"):
                first = time.perf_counter()
            timings = chunk.get("timings") or timings
        connection.close()
        return first, timings

    def pid(self, daemon):
        """Process id of a daemon of this house; None while it is not running."""
        for entry in Path("/proc").iterdir():
            try:
                status = (entry / "stat").read_text()
            except (OSError, ValueError):
                continue
            if not entry.name.isdigit():
                continue
            name, rest = status[status.index("(") + 1:].rsplit(") ", 1)
            state, parent = rest.split()[:2]
            if int(parent) == self.process.pid and name == f"vitriol-{daemon}"[:15] and state != "Z":
                return int(entry.name)
        return None

    def kill(self, daemon):
        """SIGKILLs a daemon; the moment of it."""
        pid = self.pid(daemon)
        assert pid and pid > 1, f"{self.name} has no {daemon}"
        os.kill(pid, signal.SIGKILL)
        return time.perf_counter()

    def kill_all(self):
        """SIGKILLs everything, as a power cut does; the moment of it."""
        daemons = [self.pid(daemon) for daemon in ("engine", "kvtier", "persist", "oom-shield", "demiurge")]
        self.process.kill()
        for pid in filter(None, daemons):
            os.kill(pid, signal.SIGKILL)
        killed = time.perf_counter()
        self.process.wait()
        for pid in filter(None, daemons):
            while Path(f"/proc/{pid}").exists():
                time.sleep(0.001)
        return killed

    def until_healthy(self):
        while not self.healthy():
            time.sleep(0.001)
        return time.perf_counter()


def text(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words)) + ". What comes to mind?"
