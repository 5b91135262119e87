"""The booted machine of rig.sh, and what the test asks of it."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
RIG = HERE / "rig.sh"

# Machines that run the tests are slow at times; what never comes is found out all the same.
DEADLINE_S = 60

# Runs inside: one HTTP request; prints status, headers and body as JSON.
ASK = """
import http.client, json, sys
method, path, headers, body = json.loads(sys.argv[1])
c = http.client.HTTPConnection("127.0.0.1", 8265, timeout=60)
c.request(method, path, body, headers)
r = c.getresponse()
print(json.dumps([r.status, dict(r.getheaders()), r.read().decode()]))
"""

# Runs inside: one streamed answer after the other until its input ends; says when text comes, then how many there were.
STREAM = """
import http.client, json, select, sys
body = {"prompt": "The violet", "max_tokens": 100, "temperature": 0, "ignore_eos": True, "stream": True}
answers = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    c = http.client.HTTPConnection("127.0.0.1", 8265, timeout=60)
    c.request("POST", "/v1/completions", json.dumps(body))
    lines = [line for line in c.getresponse() if line.startswith(b"data: ")]
    last = json.loads(lines[-2][6:])
    if lines[-1] != b"data: [DONE]\\n" or last["choices"][0]["finish_reason"] != "length":
        sys.exit(f"after {answers} answers: {lines[-2:]}")
    if not answers: print("begun", flush=True)
    answers += 1
print(answers)
"""


# Runs inside: connects to a Unix socket and says what comes of it. A gRPC server greets at once; one
# that drops strangers closes.
KNOCK = """
import socket, sys
s = socket.socket(socket.AF_UNIX); s.settimeout(20)
try: s.connect(sys.argv[1])
except PermissionError: print("denied"); sys.exit()
try:
    s.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n\\0\\0\\0\\4\\0\\0\\0\\0\\0")
    print("greeted" if s.recv(1) else "dropped")
except (ConnectionResetError, BrokenPipeError): print("dropped")
"""


# Runs inside: a client that tries again and again, until nobody listens on the port any more.
POLL = """
import socket, sys, time
end = time.monotonic() + 50
while time.monotonic() < end:
    try: socket.create_connection(("127.0.0.1", 8265), timeout=2).close()
    except ConnectionRefusedError: sys.exit()
    except OSError: pass
    time.sleep(0.05)
sys.exit("somebody still listens")
"""


class Failed(Exception):
    """A check of the test that did not hold."""


def check(holds, what):
    if not holds:
        raise Failed(what)


def eventually(what, probe, within_s=DEADLINE_S):
    """The first true thing that `probe` returns; fails when none comes in time."""
    deadline = time.monotonic() + within_s
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > deadline:
            raise Failed(f"not within {within_s} s: {what}")
        time.sleep(0.05)


class Rig:
    """One boot. Use as a context: leaving it powers the machine off."""

    def __init__(self, tree, binds):
        self.tree = tree
        self.binds = binds
        self.state = tempfile.mkdtemp(prefix="vitriol-rig.")
        # When the house was last asked for something.
        self.asked_at = time.monotonic()
        self.ending = threading.Lock()

    def __enter__(self):
        args = ["up", self.state, "--over", str(self.tree)]
        for source, target in self.binds:
            args += ["--bind", f"{source}:{target}"]
        subprocess.run([RIG, *args], check=True)
        return self

    def __exit__(self, *_):
        self.down()

    def down(self):
        """Powers off; whether it went in order. Without effect on a machine that is off."""
        with self.ending:
            if not os.path.exists(f"{self.state}/cgroups"):
                return True
            ended = subprocess.run([RIG, "down", self.state], check=False).returncode == 0
            if ended:
                shutil.rmtree(self.state)
            return ended

    def run(self, *command, text=None):
        """Runs a command inside, to its end."""
        command = [RIG, "exec", self.state, *map(str, command)]
        return subprocess.run(
            command, capture_output=True, text=True, input=text, check=False, timeout=4 * DEADLINE_S
        )

    @contextlib.contextmanager
    def client(self):
        """While a client reads one streamed answer after the other; every one must come to its end."""
        command = [RIG, "exec", self.state, "python3", "-c", STREAM]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(command, text=True, **pipes) as client:
            try:
                begun = client.stdout.readline()
                check(begun == "begun\n", f"no answer came: {begun}{'' if begun else client.stderr.read()}")
                yield
                answers, err = client.communicate(timeout=2 * DEADLINE_S)
            finally:
                client.kill()
        check(client.returncode == 0, f"an answer broke: {err}")
        check(int(answers) > 1, f"{answers} answers")
        self.asked_at = time.monotonic()

    def must(self, *command, text=None):
        """Output of a command that must succeed."""
        done = self.run(*command, text=text)
        check(
            done.returncode == 0,
            f"{' '.join(map(str, command))}: exit {done.returncode}: {done.stdout}{done.stderr}",
        )
        return done.stdout

    def write(self, path, text):
        self.must("sh", "-c", f"mkdir -p $(dirname {path}) && cat > {path}", text=text)

    def drop_in(self, unit, text):
        """Puts a drop-in of the test's into force; an empty one takes it away."""
        self.write(f"/run/systemd/system/{unit}.d/test.conf", text)
        self.must("systemctl", "daemon-reload")

    # ------------------------------------------------------------------------------- systemd

    def show(self, unit, name):
        return self.must("systemctl", "show", unit, f"--property={name}", "--value").strip()

    def pid(self, unit):
        """Main process of a unit, as its own namespace counts; 0 when it has none."""
        return int(self.show(unit, "MainPID"))

    def cpu_s(self, unit):
        """Seconds of one core that the main process of a unit has taken."""
        fields = self.must("cat", f"/proc/{self.pid(unit)}/stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self, unit, signal):
        pid = self.pid(unit)
        check(pid > 1, f"{unit} does not run")
        self.must("kill", f"-{signal}", pid)
        return pid

    def can_bound_cpu(self):
        """Whether CPUQuota= does anything: the machine has the cpu controller of cgroup 2 or 1."""
        v2 = "/sys/fs/cgroup/cgroup.controllers"
        line = f"if test -e {v2}; then grep -qw cpu {v2}; else ls -d /sys/fs/cgroup/cpu /sys/fs/cgroup/cpu,*; fi"
        done = self.run("sh", "-c", line)
        return done.returncode == 0 or bool(done.stdout)

    def until_active(self, unit, but_not=0):
        """Waits until a unit is ready, with another main process than `but_not`."""
        # In this order: a state that was asked for first could still be the dead process's.
        is_ready = lambda: self.pid(unit) not in (0, but_not) and self.show(unit, "ActiveState") == "active"
        eventually(f"{unit} is active again", is_ready)

    def journal(self, *matches):
        """Entries since boot in the order in which journald took them, all that were written before."""
        # A unit may be ready before journald has read what it said until then.
        self.must("journalctl", "--sync")
        lines = self.run("journalctl", "-b", "-o", "json", "--no-pager", *matches).stdout
        return [json.loads(line) for line in lines.splitlines()]

    def until_event(self, message_id, *matches, after=0):
        """Waits for the event number `after` + 1 of a kind; its entry."""
        query = lambda: self.journal(f"MESSAGE_ID={message_id}", *matches)[after:]
        return eventually(f"an event {message_id} {matches}", query)[0]

    # ------------------------------------------------------------------------------ the house

    def ask(self, path, body=None, **headers):
        """One HTTP request from inside: status, headers, body."""
        method = "POST" if body is not None else "GET"
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        text = json.dumps(body) if body is not None else None
        arguments = json.dumps([method, path, headers, text])
        answer = json.loads(self.must("python3", "-c", ASK, arguments))
        self.asked_at = time.monotonic()
        return answer

    def completion(self, prompt="The violet", **headers):
        """An answer of four tokens, which must come."""
        body = {"prompt": prompt, "max_tokens": 4, "temperature": 0}
        status, headers, text = self.ask("/v1/completions", body, **headers)
        check(status == 200, f"HTTP {status}: {text}")
        usage = json.loads(text)["usage"]
        check(usage["completion_tokens"] == 4, text)
        return headers

    def until_answering(self):
        eventually("the house is well", self._is_well)
        self.completion()

    def _is_well(self):
        done = self.run("python3", "-c", ASK, json.dumps(["GET", "/health", {}, None]))
        return done.returncode == 0 and json.loads(done.stdout)[0] == 200

    def knock(self, socket, *identity):
        """What a process with this identity (arguments of setpriv) gets from a Unix socket."""
        return self.must("setpriv", *identity, "python3", "-c", KNOCK, socket).strip()
