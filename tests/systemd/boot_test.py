#!/usr/bin/env python3
"""The house under a real systemd: installs the built binaries into a tree, boots it (rig.sh) and breaks
it in every way the units promise to mend. Run by `ops/test systemd`.

    boot_test.py --bin DIRECTORY --model FILE.gguf

What needs no boot (install and uninstall in a tree) runs everywhere, without root too. Where the machine
cannot boot the rig, one line says NOT RUN and why, and that is no failure.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from rig import HERE, KNOCK, POLL, RIG, Failed, Rig, check, eventually

ROOT = HERE.parent.parent
ENGINE = "vitriol-engine@main.service"
DEMIURGE = "vitriol-demiurge.service"
SOCKET = "vitriol-demiurge.socket"
SHIELD = "vitriol-oom-shield.service"
KVTIER = "vitriol-kvtier.service"
PERSIST = "vitriol-persist.service"
TARGET = "vitriol.target"
UNITS = [TARGET, "vitriol.slice", SOCKET, DEMIURGE, ENGINE, SHIELD, KVTIER, PERSIST]
PROFILE = "/etc/vitriol/vitriol.toml"
# Where the built binaries and the model lie inside.
BUILT = "/opt/vitriol-built"
MODELS = "/opt/vitriol-models"

# systemd's own events (systemd/sd-messages.h).
UNIT_STARTED = "39f53479d3a045ac8e11786248231fbf"

# Of the engine that is made to hang.
WATCHDOG_S = 5

# Three seconds without movement are a hang, long before the watchdogs of the units think so.
# What no machine has is short everywhere.
WATCH = "\n[persist]\npoll_interval_ms = 500\npoll_deadline_ms = 200\nhang_polls = 2\nmemory_warn_bytes = '1024 TiB'\n"
AS_PERSIST = ["setpriv", "--reuid", "vitriol-persist", "--regid", "vitriol", "--clear-groups"]

# Whose large processes the shield offers to the kernel, and one that no person has (systemd's own range).
SOMEBODY, SOMEBODYS_SERVICE = 4322, 61200
FAT = "memory = bytes([1]) * (320 << 20); import time; time.sleep(600)"

# A tier of seven slots, whose hangs are noticed soon.
TIER = "\n[kvtier]\nenabled = true\narena_bytes = '10 MiB'\nslot_bytes = '1 MiB'\n"
TIER_WATCHDOG = "[Service]\nWatchdogSec=2s\nTimeoutAbortSec=1s\n"

# What the shield sees of what is writable somewhere.
SIGHT = {
    "/etc": ["vitriol"],
    "/run": ["systemd", "vitriol"],
    "/var": ["lib", "tmp"],
    "/var/lib": ["vitriol"],
    "/var/lib/vitriol": ["oom-shield"],
    "/home": [],
    "/root": [],
}

# Must never be written down anywhere.
SECRET = "a secret violet of the archbishop"


def event_ids():
    source = (ROOT / "crates/chassis/src/event.rs").read_text()
    return dict(re.findall(r'^    ([A-Z_]+) = "([0-9a-f]{32})";$', source, re.M))


EVENT = event_ids()


# ------------------------------------------------------------------------------------ before the boot


def vitriol(built, *arguments, **more):
    """Runs the built `vitriol` here, outside of any rig."""
    command = [built / "vitriol", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, **more)


def install(built, tree, *more, deed="install", **also):
    """Lines of an install into, or with `deed` an uninstall from, a tree."""
    done = vitriol(built, deed, "--root", tree, *more, stdout=subprocess.PIPE, **also)
    check(done.returncode == 0, f"{deed} --root: {done.stderr}")
    return done.stdout.splitlines()


def snapshot(tree):
    return {
        path.relative_to(tree): path.lstat().st_mtime_ns
        for path in sorted(tree.rglob("*"))
        if not path.is_dir()
    }


def installs_into_a_tree_and_a_second_time_changes_nothing(built, tree, model):
    install(built, tree, "--model", model, "--dry-run")
    check(not snapshot(tree), "a dry run wrote")
    install(built, tree, "--model", model)
    first = snapshot(tree)
    check(pathlib.Path("etc/vitriol/vitriol.toml") in first, "no profile")
    said = install(built, tree, "--model", model)
    deeds = {line.split()[0] for line in said}
    check(deeds == {"kept", "next"}, f"a second install did {deeds}")
    check(snapshot(tree) == first, "a second install changed files")
    # What a broken install left is mended; what the administrator wrote is not touched.
    (tree / "usr/local/lib/systemd/system" / SOCKET).write_text("[Socket]\n")
    profile = tree / "etc/vitriol/vitriol.toml"
    ours = profile.read_text()
    profile.write_text(ours + "threads = 1\n")
    said = install(built, tree, "--model", model)
    check([line.split()[0] for line in said if SOCKET in line] == ["wrote"], said)
    check(profile.read_text().endswith("threads = 1\n"), "the edited profile is gone")
    profile.write_text(ours)


def files_in(tree):
    return sorted(map(str, snapshot(tree)))


def split_model(directory):
    """Writes a model as small as can be, of one tensor in each of two files; their paths."""
    text = lambda word: struct.pack("<Q", len(word)) + word.encode()
    paths = []
    for number in (0, 1):
        keys = [
            text("split.no") + struct.pack("<IH", 2, number),
            text("split.count") + struct.pack("<IH", 2, 2),
            text("split.tensors.count") + struct.pack("<Ii", 5, 2),
        ]
        tensor = text(f"tensor{number}") + struct.pack("<IQIQ", 1, 8, 0, 0)
        head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys)) + b"".join(keys) + tensor
        paths.append(directory / f"split-0000{number + 1}-of-00002.gguf")
        paths[-1].write_bytes(head + bytes(-len(head) % 32) + bytes(32))
    return paths


def installs_every_part_of_a_model_and_uninstalls_in_steps(built, scratch):
    tree = scratch / "machine"
    (scratch / "models").mkdir()
    parts = split_model(scratch / "models")
    install(built, tree, "--model", parts[1])
    models = "var/lib/vitriol/models"
    lasting = ["etc/vitriol/vitriol.toml", *(f"{models}/{part.name}" for part in parts)]
    for part in parts:
        check((tree / models / part.name).read_bytes() == part.read_bytes(), f"{part.name} is another")
    check(f'"/{models}/{parts[0].name}"' in (tree / lasting[0]).read_text(), "the profile names another model")
    said = install(built, tree, deed="uninstall")
    check(files_in(tree) == lasting, f"left: {files_in(tree)}")
    check(sum(line.startswith("left ") for line in said) == 2, said)
    install(built, tree, "--purge", deed="uninstall")
    check(not files_in(tree), f"left by --purge: {files_in(tree)}")
    parts[1].write_bytes(b"no model at all, and yet a file")
    done = vitriol(built, "install", "--root", tree, "--model", parts[1], stdout=subprocess.PIPE)
    check(done.returncode == 69 and parts[1].name in done.stderr, f"{done.returncode}: {done.stderr}")
    check(not files_in(tree), f"written before the model was refused: {files_in(tree)}")


def a_users_purge_leaves_what_up_uses_too_and_says_so(built, scratch):
    tree, home = scratch / "user", "/home/violet"
    also = {"env": {"HOME": home, "PATH": os.environ["PATH"]}}
    install(built, tree, "--user", **also)
    shared = [f"{tree}{home}/.local/state/vitriol/decisions.jsonl", f"{tree}{home}/.cache/vitriol/models/m.gguf"]
    for path in map(pathlib.Path, shared):
        path.parent.mkdir(parents=True)
        path.write_text("theirs\n")
    said = install(built, tree, "--user", "--purge", deed="uninstall", **also)
    check([f"{tree}/{path}" for path in files_in(tree)] == sorted(shared), f"left: {files_in(tree)}")
    left = {line.split()[1].rstrip(":") for line in said if line.startswith("left ")}
    check(left == {f"{home}/.local/state/vitriol", f"{home}/.cache/vitriol"}, said)


def nobody_need_read_what_an_install_says(built, scratch):
    tree = scratch / "unread"
    for deed, count in (("install", 10), ("uninstall", 1)):
        reader, writer = os.pipe()
        os.close(reader)
        done = vitriol(built, deed, "--root", tree, stdout=writer)
        os.close(writer)
        check(done.returncode == 0, f"{deed}: exit {done.returncode}: {done.stderr}")
        found = [path for path in files_in(tree) if ".gguf" not in path]
        check(len(found) >= count if deed == "install" else len(found) == count, f"{deed}: {found}")


# --------------------------------------------------------------------------------------- the machine


def boots_with_users_and_directories(rig):
    for user in ("vitriol-engine", "vitriol-demiurge", "vitriol-oom-shield", "vitriol-kvtier", "vitriol-persist"):
        check(rig.must("id", "-gn", user).strip() == "vitriol", f"{user}'s group")
    for directory, expected in {
        "/run/vitriol/engine": "750 vitriol-engine vitriol",
        "/run/vitriol/demiurge": "750 vitriol-demiurge vitriol",
        "/run/vitriol/oom-shield": "750 vitriol-oom-shield vitriol",
        "/run/vitriol/kvtier": "750 vitriol-kvtier vitriol",
        "/run/vitriol/persist": "750 vitriol-persist vitriol",
        "/var/lib/vitriol/demiurge": "750 vitriol-demiurge vitriol",
        "/var/lib/vitriol/oom-shield": "750 vitriol-oom-shield vitriol",
        "/var/lib/vitriol/persist": "700 vitriol-persist vitriol",
        "/var/lib/vitriol/kvtier": "700 vitriol-kvtier vitriol",
        "/var/lib/vitriol/models": "755 root root",
    }.items():
        found = rig.must("stat", "-c", "%a %U %G", directory).strip()
        check(found == expected, f"{directory}: {found}")


def units_verify_clean(rig):
    said = rig.run("systemd-analyze", "verify", *UNITS)
    check((said.returncode, said.stdout + said.stderr) == (0, ""), said.stdout + said.stderr)


def security_scores_are_those_of_the_table(rig):
    try:
        import tomllib
    except ImportError:
        print("NOT RUN: security scores: their table wants Python 3.11 or newer (tomllib)")
        return
    version = rig.must("systemctl", "--version").split()[1]
    table = tomllib.loads((HERE / "security.toml").read_text())
    scores = table.get(f"systemd-{version}")
    if scores is None:
        print(f"NOT RUN: security scores: tests/systemd/security.toml has none for systemd {version}")
        return
    for unit, expected in scores.items():
        said = rig.must("systemd-analyze", "security", "--no-pager", unit)
        found = float(re.search(r"Overall exposure level for \S+: ([0-9.]+)", said).group(1))
        words = "worse" if found > expected else "better: write it into the table"
        check(found == expected, f"{unit}: {found} instead of {expected}: {words}")


def is_ready_only_after_its_first_token(rig):
    rig.must(f"{BUILT}/vitriol", "install", "--now")
    entries = rig.journal()
    position = {}
    for number, entry in enumerate(entries):
        of_engine = ENGINE in (entry.get("_SYSTEMD_UNIT"), entry.get("UNIT"))
        if of_engine:
            position.setdefault(entry.get("MESSAGE_ID"), number)
    order = [position.get(EVENT["MODEL_LOADED"]), position.get(EVENT["DAEMON_READY"]), position.get(UNIT_STARTED)]
    check(None not in order and order == sorted(order), f"loaded, ready, started: {order}")
    loaded = entries[order[0]]
    check("computed a first token" in loaded["MESSAGE"] and loaded["MODEL"].endswith(".gguf"), loaded)
    check(rig.show(ENGINE, "StatusText").startswith("serving "), "its status")


def answers_through_the_socket(rig):
    rig.until_answering()
    headers = rig.completion(SECRET, x_session_id="session-1")
    check(headers["x-demiurge-lane"] == "local", headers)
    entry = rig.until_event(EVENT["REQUEST_ANSWERED"], "VITRIOL_SESSION=session-1")
    check(entry["VITRIOL_LANE"] == "local" and entry["COMPLETION_TOKENS"] == "4", entry)
    check(entry["_SYSTEMD_UNIT"] == DEMIURGE and entry["PRIORITY"] == "6", entry)
    status, _, _ = rig.ask("/v1/completions", {"prompt": 7}, x_session_id="session-2")
    check(status == 400, f"HTTP {status}")
    entry = rig.until_event(EVENT["REQUEST_REFUSED"], "VITRIOL_SESSION=session-2")
    check(entry["STATUS"] == "400", entry)
    check(SECRET not in rig.must("journalctl", "-b", "-a", "-o", "export"), "a prompt is in the journal")


def the_journal_explains_its_events(rig):
    dumped = rig.must("journalctl", "--dump-catalog", *EVENT.values())
    check(dumped.count("\nDefined-By: VITRIOL") == len(EVENT), "entries of the catalog are missing")
    said = rig.must("journalctl", "-b", "-x", "-n", "1", f"MESSAGE_ID={EVENT['REQUEST_REFUSED']}")
    check("Subject: A request was refused" in said and "HTTP status 400" in said, said)


def strangers_are_dropped(rig):
    engine = "/run/vitriol/engine/main.sock"
    nobody = ["--reuid", "nobody", "--clear-groups"]
    demiurge = ["--reuid", "vitriol-demiurge", "--regid", "vitriol", "--clear-groups"]
    check(rig.knock(engine, *nobody, "--regid", "nogroup") == "denied", "nobody came in")
    check(rig.knock(engine, *demiurge) == "greeted", "Demiurge is not greeted")
    # The group by a list lets it open the file; what counts is the group it runs as.
    member = ["--reuid", "nobody", "--regid", "nogroup", "--groups", "vitriol"]
    check(rig.knock(engine, *member) == "dropped", "a member of the group came in")
    said = rig.must("vitriol", "status")
    for name in ("engine", "demiurge", "oom-shield", "persist"):
        check(f"{name:<10} ready" in said, said)


def a_slow_load_says_how_far_it_is_and_is_waited_for(rig):
    if not rig.can_bound_cpu():
        print("NOT RUN: a slow load: there is no cpu controller for CPUQuota= in the cgroups of this machine")
        return
    # So little of a core that a load takes about 3 s; what a core gives in that time changes from one to the next.
    rig.must("systemctl", "restart", ENGINE)
    quota = max(rig.cpu_s(ENGINE) / 3, 0.01)
    timeout_s = 120
    for _ in range(4):
        rig.drop_in(ENGINE, f"[Service]\nTimeoutStartSec={timeout_s * 1000:.0f}ms\nCPUQuota={quota * 100:.2f}%\n")
        reported_s, ready_s, seen = slow_start(rig)
        took = f"{ready_s:.1f} s, at {quota:.1%} of a core; a start may take {timeout_s:.1f} s, a report came after {reported_s:.1f} s"
        check(rig.show(ENGINE, "NRestarts") == "0", f"it was restarted on the way: {took}")
        check(len(seen) > 1, f"it said only {seen}")
        if ready_s > timeout_s:
            break
        # Between the first report and the end; the next load must outlast it, by its reports.
        timeout_s = (reported_s + ready_s) / 2
    check(ready_s > timeout_s, f"no load was slow enough to tell: the last took {took}")
    print(f"the slow load took {took}")
    rig.drop_in(ENGINE, "")
    rig.until_answering()


def slow_start(rig):
    """Restarts the engine: seconds to its first report and to READY, and what it said on the way."""
    rig.must("systemctl", "restart", "--no-block", ENGINE)
    seen, reports = set(), []

    def started():
        state, status = rig.show(ENGINE, "ActiveState"), rig.show(ENGINE, "StatusText")
        if state == "activating" and status.startswith(("loading weights: ", "repacking weights: ")):
            seen.add(status)
            reports.append(time.monotonic())
        return state == "active" and seen

    eventually("the slow load ends", started)
    properties = ("InactiveExitTimestampMonotonic", "ActiveEnterTimestampMonotonic")
    began, ready = (int(rig.show(ENGINE, name)) / 1e6 for name in properties)
    return reports[0] - began, ready - began, seen


def a_killed_engine_comes_back(rig):
    lost = len(rig.journal(f"MESSAGE_ID={EVENT['ENGINE_LOST']}"))
    # For the one that comes back: short, and yet longer than a busy machine holds a process back.
    rig.drop_in(ENGINE, f"[Service]\nWatchdogSec={WATCHDOG_S}s\n")
    before = rig.kill(ENGINE, "KILL")
    rig.until_active(ENGINE, but_not=before)
    rig.until_answering()
    entry = rig.until_event(EVENT["ENGINE_LOST"], after=lost)
    check(entry["_SYSTEMD_UNIT"] == DEMIURGE, entry)


def a_killed_demiurge_leaves_its_callers_in_the_queue(rig):
    rig.drop_in(DEMIURGE, "[Service]\nRestartSec=1500ms\n")
    before = rig.kill(DEMIURGE, "KILL")
    eventually("Demiurge is gone", lambda: rig.pid(DEMIURGE) == 0)
    # Nobody listens but systemd now; the request is in before anybody can answer it.
    rig.completion()
    check(rig.pid(DEMIURGE) not in (0, before), "who answered?")
    rig.drop_in(DEMIURGE, "")


def a_hanging_engine_is_restarted_by_the_watchdog(rig):
    check(rig.show(ENGINE, "WatchdogUSec") == f"{WATCHDOG_S}s", "the drop-in is not in force")
    # An idle one, as it was during the tests before this one, shows that it lives: beyond its interval nothing happens.
    time.sleep(max(0, rig.asked_at + WATCHDOG_S + 0.5 - time.monotonic()))
    check(not rig.journal(f"UNIT={ENGINE}", "UNIT_RESULT=watchdog"), "an idle engine was restarted")
    before = rig.pid(ENGINE)
    rig.kill(ENGINE, "STOP")
    rig.until_active(ENGINE, but_not=before)
    check(rig.journal(f"UNIT={ENGINE}", "UNIT_RESULT=watchdog"), "it was not the watchdog")
    rig.drop_in(ENGINE, "")
    rig.until_answering()


def persist_ends_an_engine_that_hangs_and_may_do_nothing_else(rig):
    ours = rig.must("cat", PROFILE)
    rig.write(PROFILE, ours + WATCH)
    rig.must("systemctl", "restart", ENGINE, PERSIST)
    before, others = rig.pid(ENGINE), [rig.pid(unit) for unit in (DEMIURGE, SHIELD)]
    launches = lambda: json.loads(rig.must("vitriol", "fingerprint", "log", "--json"))["launches"]
    on_record = lambda: [found for found in launches() if found["pid"] == rig.pid(ENGINE)]
    eventually("the engine is on record", on_record)
    has_polkit = rig.run("systemctl", "start", "polkit.service").returncode == 0
    rig.kill(ENGINE, "STOP")
    if has_polkit:
        # Meanwhile.
        may_signal_the_houses_units_alone(rig)
        rig.until_active(ENGINE, but_not=before)
        entry = rig.until_event(EVENT["DAEMON_HUNG"])
        check((entry["UNIT"], entry["SIGNAL"]) == (ENGINE, "SIGKILL"), entry)
    else:
        print("NOT RUN: what persist may ask of systemd: there is no polkit on this machine")
        entry = rig.until_event(EVENT["DAEMON_HUNG"])
        check("could not be ended" in entry["MESSAGE"], entry)
        rig.kill(ENGINE, "CONT")
    check([rig.pid(unit) for unit in (DEMIURGE, SHIELD)] == others, "others were ended too")
    entry = rig.until_event(EVENT["MEMORY_SHORT"])
    check(int(entry["AVAILABLE_BYTES"]) > 0, entry)

    # Each launch is on record, and a setting that changed is seen.
    again = eventually("the engine that came back is on record", on_record)[0]
    check((again["unit"], again["since_last"]) == (ENGINE, []), again["since_last"])
    check(ENGINE in rig.must("vitriol", "fingerprint", "bless"), "its launch is not blessed")
    off = ours.replace("[engine.main]", "[engine.main]\nspeculation = 'off'")
    rig.write(PROFILE, off + WATCH)
    rig.must("systemctl", "restart", ENGINE, PERSIST)
    rig.until_event(EVENT["LAUNCH_CHANGED"], "CHANGES=engine.speculation: prompt-lookup -> off")
    check("engine.speculation  prompt-lookup -> off" in rig.must("vitriol", "fingerprint", "diff"), "diff")
    rig.write(PROFILE, ours)
    rig.must("systemctl", "restart", PERSIST)
    rig.until_answering()


def may_signal_the_houses_units_alone(rig):
    systemctl = ["systemctl", "--no-ask-password"]
    signal_shield = ["kill", "--signal=CONT", SHIELD]
    for refused in (
        ["kill", "--signal=CONT", "systemd-journald.service"],
        ["kill", "--signal=CONT", PERSIST],
        ["restart", SHIELD],
        ["stop", SHIELD],
        ["restart", "systemd-journald.service"],
    ):
        done = rig.run(*AS_PERSIST, *systemctl, *refused)
        check(done.returncode != 0 and "authentication required" in done.stderr, f"{refused}: {done.stderr}")
    rig.must(*AS_PERSIST, *systemctl, *signal_shield)
    as_demiurge = ["setpriv", "--reuid", "vitriol-demiurge", *AS_PERSIST[3:]]
    done = rig.run(*as_demiurge, *systemctl, *signal_shield)
    check(done.returncode != 0, "Demiurge may signal the shield")


def the_shield_offers_what_is_large_and_gives_it_back(rig):
    score = lambda unit: int(rig.must("cat", f"/proc/{rig.pid(unit)}/oom_score_adj"))
    said = [entry["MESSAGE"] for entry in rig.journal(f"MESSAGE_ID={EVENT['SHIELD_DEGRADED']}")]
    refused = any("did not take OOMScoreAdjust=" in message for message in said)
    check(refused or (score(ENGINE), score(SHIELD)) == (-500, -900), f"{score(ENGINE)}, {score(SHIELD)}: {said}")

    # It may write whatever its user could not; so it sees nothing of that.
    seen = {path: rig.must("nsenter", "-t", rig.pid(SHIELD), "-m", "ls", path).split() for path in SIGHT}
    check(seen == SIGHT, f"the shield sees {seen}")
    uid, gid = (rig.must("id", flag, "vitriol-oom-shield").strip() for flag in ("-u", "-g"))
    within = ["nsenter", "-t", rig.pid(SHIELD), "-m", "setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
    reached = rig.must(*within, "python3", "-c", KNOCK, "/run/vitriol/engine/main.sock").strip()
    check(reached == "greeted", f"the engine, reached from the shield's sandbox: {reached}")

    ours = rig.must("cat", PROFILE)
    rig.write(PROFILE, ours + "\n[shield]\nscan_interval_ms = 100\n")
    rig.must("systemctl", "restart", SHIELD)
    for name, uid in (("of-somebody", SOMEBODY), ("of-the-machine", SOMEBODYS_SERVICE)):
        as_user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        rig.must("systemd-run", "--quiet", f"--unit={name}", *as_user, "python3", "-c", FAT)
    fat, service = "of-somebody.service", "of-the-machine.service"
    # Its score is written before the status says so.
    raised = lambda: [p for p in shield_status(rig)["processes"] if p["standing"] == "raised"]
    found = eventually("a large process is raised", raised)
    check([(p["pid"], p["raised_from"], p["uid"]) for p in found] == [(rig.pid(fat), 0, SOMEBODY)], found)
    check(found[0]["resident_bytes"] > 300 << 20 and score(fat) == 300, found)
    check(score(service) == 0 and score(ENGINE) <= 0, "a process of the machine was raised")

    # A killed one comes back alone, and knows what each had before.
    others = [rig.pid(unit) for unit in (ENGINE, DEMIURGE)]
    before = rig.kill(SHIELD, "KILL")
    rig.until_active(SHIELD, but_not=before)
    again = lambda: [p for p in shield_status(rig)["processes"] if p["raised_from"] is not None]
    found = eventually("it is raised again", again)
    check([(p["pid"], p["raised_from"]) for p in found] == [(rig.pid(fat), 0)], found)
    check([rig.pid(unit) for unit in (ENGINE, DEMIURGE)] == others, "others were restarted too")
    rig.must("systemctl", "stop", SHIELD)
    check(score(fat) == 0, f"its score is {score(fat)} after the shield has ended")

    # Without its capability it says so, and goes on.
    known = len(said)
    rig.drop_in(SHIELD, "[Service]\nCapabilityBoundingSet=\nAmbientCapabilities=\n")
    rig.must("systemctl", "start", SHIELD)
    denied = lambda: [e for e in rig.journal(f"MESSAGE_ID={EVENT['SHIELD_DEGRADED']}")[known:] if "set a score" in e["MESSAGE"]]
    entry = eventually("the refusal is said", denied)[0]
    check("os error 13" in entry["ERROR"] and score(fat) == 0, entry)
    check(shield_status(rig)["refusals"] == 1, shield_status(rig))
    rig.must("systemctl", "stop", fat, service)
    rig.drop_in(SHIELD, "")
    rig.write(PROFILE, ours)
    rig.must("systemctl", "restart", SHIELD)


def shield_status(rig):
    # On a busy machine the answer may come later than the command waits for it.
    asked = lambda: rig.run("vitriol", "shield", "status", "--json").stdout
    return json.loads(eventually("the shield's status", asked))


def the_tier_outlives_its_process(rig):
    rig.write(PROFILE, rig.must("cat", PROFILE) + TIER)
    rig.drop_in(KVTIER, TIER_WATCHDOG)
    rig.must("systemctl", "start", KVTIER)
    said = rig.must("vitriol", "kv", "check")
    check("was stored" in said, said)
    mirrored = lambda: [found for found in [tier_status(rig)] if found["mirror"]["records"] == 1]
    first = eventually("the record is on the mirror", mirrored)[0]
    check((first["epoch"], first["slots_free"]) == (1, first["slots"] - 1), first)

    # A kill leaves the memory with systemd, and so does a hang.
    for epoch, signal_name in ((2, "KILL"), (3, "STOP")):
        before = rig.kill(KVTIER, signal_name)
        rig.until_active(KVTIER, but_not=before)
        found = tier_status(rig)
        same = [found[key] == first[key] for key in ("arena_id", "slots_free")]
        check(all(same) and found["epoch"] == epoch, f"after SIG{signal_name}: {found}")
        said = rig.must("vitriol", "kv", "check")
        check("is in the arena" in said, said)
    check(rig.journal(f"UNIT={KVTIER}", "UNIT_RESULT=watchdog"), "it was not the watchdog")

    # A stop ends the store.
    rig.must("systemctl", "stop", KVTIER)
    rig.must("systemctl", "start", KVTIER)
    found = eventually("the mirror is read", mirrored)[0]
    check(found["arena_id"] != first["arena_id"] and found["slots_free"] == found["slots"], found)
    said = rig.must("vitriol", "kv", "check")
    check("was on the mirror" in said, said)

    # The engine has its user, the tier another: what the one computed comes back from the other.
    rig.must("systemctl", "restart", ENGINE)
    ask = {"prompt": "The violet grows. " * 40, "max_tokens": 1}
    reused = lambda: json.loads(rig.ask("/v1/completions", ask)[2])["timings"].get("cache_arena_n", 0)
    check(reused() == 0, "an answer from a tier that had nothing")
    eventually("what was computed is stored", lambda: tier_status(rig)["slots_free"] < found["slots_free"] - 1)
    rig.until_active(ENGINE, but_not=rig.kill(ENGINE, "KILL"))
    tokens = reused()
    check(tokens >= 128, f"{tokens} tokens came from the arena")

    rig.drop_in(KVTIER, "")


def each_unit_is_restarted_alone_while_a_client_reads(rig):
    units = (SHIELD, PERSIST, KVTIER, DEMIURGE, ENGINE)
    pids = lambda: {unit: rig.pid(unit) for unit in units}
    with rig.client():
        for unit in units:
            before = pids()
            rig.must("systemctl", "restart", unit)
            now = pids()
            restarted = [other for other in units if now[other] != before[other]]
            check(restarted == [unit] and now[unit] != 0, f"{unit}: {before}, {now}")


def without_a_tier_its_unit_is_skipped(rig):
    rig.write(PROFILE, rig.must("cat", PROFILE).replace(TIER, ""))
    rig.must("systemctl", "restart", KVTIER)
    state = [rig.show(KVTIER, name) for name in ("ActiveState", "Result")]
    check(state == ["inactive", "exec-condition"], state)


def tier_status(rig):
    return json.loads(rig.must("vitriol", "kv", "status", "--json"))


def up_is_refused_while_the_units_run(rig):
    nobody = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "env", "HOME=/tmp/nobody"]
    for identity in ([], nobody):
        done = rig.run(*identity, "vitriol", "up")
        check(done.returncode == 69, f"exit {done.returncode}: {done.stderr}")
        check(SOCKET in done.stderr and "systemctl stop vitriol.target" in done.stderr, done.stderr)
    rig.completion()


def the_units_are_refused_while_up_runs(rig):
    rig.must("systemctl", "stop", TARGET)
    # The command waits for the target's own end.
    for unit in (SOCKET, DEMIURGE, ENGINE, SHIELD, PERSIST):
        eventually(f"{unit} ends with the target", lambda unit=unit: rig.show(unit, "ActiveState") == "inactive")
    model = rig.must("sh", "-c", "echo /var/lib/vitriol/models/*.gguf").strip()
    up = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "env", "HOME=/tmp/nobody"]
    rig.must("systemd-run", "--quiet", "--unit=up", *up, "vitriol", "up", "--model", model)
    rig.until_answering()
    known = len(rig.journal(f"MESSAGE_ID={EVENT['DEPENDENCY_MISSING']}"))
    done = rig.run("systemctl", "start", TARGET)
    check(done.returncode != 0, "the units started beside `vitriol up`")
    entry = rig.until_event(EVENT["DEPENDENCY_MISSING"], after=known)
    holder = re.search(r"process (\d+) \(vitriol-demiurg", entry["MESSAGE"])
    check(holder and entry["EXIT_CODE"] == "69", entry["MESSAGE"])
    check(rig.must("ps", "-o", "comm=", "-p", holder.group(1)).startswith("vitriol-demiurg"), "its pid")
    # No storm: one try, one event, and no engine that takes the memory twice.
    time.sleep(2)
    count = len(rig.journal(f"MESSAGE_ID={EVENT['DEPENDENCY_MISSING']}")) - known
    check(count == 1, f"{count} tries")
    check([rig.pid(unit) for unit in (ENGINE, SHIELD, PERSIST)] == [0, 0, 0], "a daemon runs beside `vitriol up`")
    check(rig.show(SOCKET, "ActiveState") == "failed", "the socket")
    rig.must("systemctl", "stop", "up.service")
    rig.must("systemctl", "reset-failed")
    rig.must("systemctl", "start", TARGET)
    rig.until_answering()


def a_wrong_profile_is_said_once_and_not_tried_again(rig):
    ours = rig.must("cat", PROFILE)
    rig.write(PROFILE, ours + "thread = 1\n")
    done = rig.run("systemctl", "restart", ENGINE)
    check(done.returncode != 0, "it started with a wrong profile")
    entry = rig.until_event(EVENT["CONFIGURATION_REFUSED"], f"_SYSTEMD_UNIT={ENGINE}")
    check("threads" in entry["MESSAGE"] and entry["EXIT_CODE"] == "78", entry)
    check(rig.show(ENGINE, "ActiveState") == "failed", "it is tried again")
    done = rig.run(f"{BUILT}/vitriol", "install", "--now")
    check(done.returncode == 69 and "its engine does not run" in done.stderr, f"{done.returncode}: {done.stderr}")
    rig.write(PROFILE, ours)
    rig.must("systemctl", "start", ENGINE)
    rig.until_answering()


def a_refused_demiurge_is_started_by_callers_until_the_socket_fails(rig):
    ours = rig.must("cat", PROFILE)
    rig.must("systemctl", "stop", DEMIURGE)
    rig.write(PROFILE, ours + "\n[demiurge]\nrequest_max = 1\n")
    rig.must("python3", "-c", POLL)
    eventually("the socket fails", lambda: rig.show(SOCKET, "ActiveState") == "failed")
    tries = len(rig.journal(f"MESSAGE_ID={EVENT['CONFIGURATION_REFUSED']}", f"_SYSTEMD_UNIT={DEMIURGE}"))
    check(1 < tries <= 20, f"{tries} tries")
    # As the runbooks say, in their order: a start alone is refused.
    rig.write(PROFILE, ours)
    rig.run("systemctl", "start", TARGET)
    check(rig.show(DEMIURGE, "ActiveState") != "active", "reset-failed is not needed")
    rig.must("systemctl", "reset-failed", "vitriol*")
    rig.must("systemctl", "start", TARGET)
    rig.until_answering()


def the_port_moves_as_the_runbook_says(rig):
    page = (ROOT / "docs/runbooks/port-is-held.md").read_text()
    rig.drop_in(SOCKET, re.search(r"^```ini\n(.*?)^```$", page, re.M | re.S).group(1))
    before = rig.pid(ENGINE)
    rig.must("systemctl", "restart", SOCKET)
    check(rig.show(SOCKET, "Listen") == "127.0.0.1:9000 (Stream)", rig.show(SOCKET, "Listen"))
    check(rig.pid(ENGINE) != before, "the engine was not restarted, against the runbook's word")
    rig.drop_in(SOCKET, "")
    rig.must("systemctl", "restart", TARGET)
    rig.until_answering()


def a_full_disk_costs_decisions_and_no_request(rig):
    state = "/var/lib/vitriol/demiurge"
    rig.must("systemctl", "stop", DEMIURGE)
    rig.must("mount", "-t", "tmpfs", "-o", "size=64k,uid=vitriol-demiurge,gid=vitriol,mode=750", "small", state)
    rig.run("dd", "if=/dev/zero", f"of={state}/filler", "bs=4k")
    rig.must("systemctl", "start", DEMIURGE)
    rig.until_answering()
    entry = rig.until_event(EVENT["DECISIONS_LOST"])
    check("os error 28" in entry["ERROR"] and entry["PRIORITY"] == "3", entry)
    rig.must("rm", f"{state}/filler")
    rig.completion()
    rig.until_event(EVENT["DECISIONS_RESUMED"])
    rig.must("systemctl", "stop", DEMIURGE)
    rig.must("umount", state)
    rig.must("systemctl", "start", DEMIURGE)


def runbook_lines():
    """(page, line) of each line of the runbooks that asks the journal."""
    lines = []
    for page in sorted((ROOT / "docs/runbooks").glob("*.md")):
        found = re.findall(r"^journalctl .*$", page.read_text(), re.M)
        check(found, f"{page.name} has no journalctl line")
        lines += [(page.name, line) for line in found]
    return lines


# Those that found something on a machine.
FOUND = set()


def runbook_lines_are_asked(rig):
    for page, line in runbook_lines():
        done = rig.run("sh", "-c", f"{line} --no-pager")
        check(done.returncode == 0, f"{page}: {line}: exit {done.returncode}: {done.stderr}")
        if done.stdout.strip() and "-- No entries --" not in done.stdout:
            FOUND.add((page, line))


def every_runbook_line_finds_what_it_is_about():
    check(FOUND == set(runbook_lines()), f"found nothing: {set(runbook_lines()) - FOUND}")


def a_users_own_house_runs_under_the_users_manager(rig):
    rig.must("systemctl", "stop", TARGET)
    # What systemd's syntax would take for something else must stand in the units as it is.
    home = "/home/vio let 100%h"
    rig.must("useradd", "--create-home", "--home-dir", home, "--uid", "4321", "violet")
    rig.must("systemctl", "start", "user@4321.service")
    as_violet = ["setpriv", "--reuid", "violet", "--regid", "violet", "--init-groups", "env", f"HOME={home}",
                 "XDG_RUNTIME_DIR=/run/user/4321"]  # fmt: skip
    done = rig.run(*as_violet, f"{BUILT}/vitriol", "install", "--user", "--now")
    check(done.returncode == 69 and "--model FILE.gguf" in done.stderr, f"{done.returncode}: {done.stderr}")
    check(rig.run("test", "-e", f"{home}/.local/bin").returncode != 0, "it was installed without a model")
    model = rig.must("sh", "-c", "echo /var/lib/vitriol/models/*.gguf").strip()
    rig.must(*as_violet, f"{BUILT}/vitriol", "install", "--user", "--model", model, "--now")
    rig.until_answering()
    said = rig.must(*as_violet, f"{home}/.local/bin/vitriol", "status")
    for name in ("engine", "oom-shield", "persist"):
        check(f"{name:<10} ready" in said, said)
    said = rig.run(*as_violet, "systemd-analyze", "--user", "verify", *UNITS)
    check((said.returncode, said.stdout + said.stderr) == (0, ""), said.stdout + said.stderr)
    done = rig.run(*as_violet, f"{home}/.local/bin/vitriol", "up", "--model", model)
    check(done.returncode == 69 and "systemctl --user stop" in done.stderr, done.stderr)
    rig.must(*as_violet, f"{BUILT}/vitriol", "uninstall", "--user")
    left = rig.must("find", f"{home}/.local", "-name", "vitriol*", "-type", "f").splitlines()
    left = [path for path in left if "/state/" not in path]
    check(not left, f"left: {left}")
    rig.must("systemctl", "stop", "user@4321.service")
    rig.must("systemctl", "start", TARGET)


def uninstall_leaves_settings_and_state(rig):
    rig.until_answering()
    files = rig.must("sh", "-c", "find /usr/local -name '*vitriol*' -type f").split()
    check(len(files) > 8, f"installed: {files}")
    # Half of it was removed by hand already.
    rig.must("rm", f"/usr/local/lib/systemd/system/{TARGET}")
    rig.must("systemctl", "daemon-reload")
    rig.must(f"{BUILT}/vitriol", "uninstall")
    for unit in (ENGINE, DEMIURGE, SHIELD, PERSIST):
        check(rig.pid(unit) == 0, f"{unit} runs though it is uninstalled")
    left = rig.must("sh", "-c", "find /usr/local /etc/systemd /etc/polkit-1 -name '*vitriol*'").split()
    check(not left, f"left: {left}")
    check(rig.run("systemctl", "cat", TARGET).returncode != 0, "systemd still knows the target")
    check(rig.run("test", "-e", "/run/vitriol").returncode != 0, "sockets are left")
    for kept in (PROFILE, "/var/lib/vitriol/demiurge/decisions.jsonl"):
        rig.must("test", "-s", kept)
    check(".gguf" in rig.must("ls", "/var/lib/vitriol/models"), "the model is gone")
    rig.must(f"{BUILT}/vitriol", "uninstall", "--purge")
    for purged in ("/var/lib/vitriol", "/var/cache/vitriol"):
        check(rig.run("test", "-e", purged).returncode != 0, f"--purge left {purged}")


def the_machine_powers_off_in_order(rig):
    check(rig.down(), "it had to be killed, or left cgroups")


IN_A_TREE = [
    installs_every_part_of_a_model_and_uninstalls_in_steps,
    a_users_purge_leaves_what_up_uses_too_and_says_so,
    nobody_need_read_what_an_install_says,
]

# Machines that run side by side, since most of their time is waiting.
MACHINES = [
    [
        boots_with_users_and_directories,
        units_verify_clean,
        security_scores_are_those_of_the_table,
        is_ready_only_after_its_first_token,
        answers_through_the_socket,
        the_journal_explains_its_events,
        strangers_are_dropped,
        a_slow_load_says_how_far_it_is_and_is_waited_for,
        a_killed_demiurge_leaves_its_callers_in_the_queue,
        up_is_refused_while_the_units_run,
        the_units_are_refused_while_up_runs,
        a_wrong_profile_is_said_once_and_not_tried_again,
        a_refused_demiurge_is_started_by_callers_until_the_socket_fails,
        the_port_moves_as_the_runbook_says,
        a_full_disk_costs_decisions_and_no_request,
        runbook_lines_are_asked,
        a_users_own_house_runs_under_the_users_manager,
        uninstall_leaves_settings_and_state,
        the_machine_powers_off_in_order,
    ],
    [
        is_ready_only_after_its_first_token,
        persist_ends_an_engine_that_hangs_and_may_do_nothing_else,
        a_killed_engine_comes_back,
        the_shield_offers_what_is_large_and_gives_it_back,
        a_hanging_engine_is_restarted_by_the_watchdog,
        the_tier_outlives_its_process,
        each_unit_is_restarted_alone_while_a_client_reads,
        without_a_tier_its_unit_is_skipped,
        runbook_lines_are_asked,
        the_machine_powers_off_in_order,
    ],
]


def say(text):
    """One write, so that the lines of the machines stay whole."""
    print(f"{text}\n", end="", flush=True)


class Tally:
    def __init__(self):
        self.passed = self.failed = 0
        self.lock = threading.Lock()

    def run(self, test, *arguments):
        """Runs one test; whether it held."""
        began = time.monotonic()
        try:
            test(*arguments)
        except (Failed, subprocess.SubprocessError, OSError, ValueError, KeyError):
            with self.lock:
                self.failed += 1
            say(f"test {test.__name__} ... FAILED ({time.monotonic() - began:.1f} s)")
            traceback.print_exc()
            return False
        with self.lock:
            self.passed += 1
        say(f"test {test.__name__} ... ok ({time.monotonic() - began:.1f} s)")
        return True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    args = parser.parse_args()
    # Told to end, the machine is powered off all the same.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    built, model = args.bin.resolve(), args.model.resolve()
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="vitriol-tree.") as scratch:
        scratch = pathlib.Path(scratch)
        tree = scratch / "booted"
        tree.mkdir()
        installed = tally.run(installs_into_a_tree_and_a_second_time_changes_nothing, built, tree, model)
        for test in IN_A_TREE:
            tally.run(test, built, scratch)
        possible = subprocess.run([RIG, "possible"], capture_output=True, text=True, check=False)
        if possible.returncode != 0:
            print(f"NOT RUN: the house under systemd: {possible.stdout.strip()}")
        elif installed:
            boot_all(tally, built, model, tree)
            tally.run(every_runbook_line_finds_what_it_is_about)
    print(f"test result: {'FAILED' if tally.failed else 'ok'}. {tally.passed} passed; {tally.failed} failed")
    return 1 if tally.failed else 0


def boot_all(tally, built, model, tree):
    rigs = [Rig(tree, [(built, BUILT), (model.parent, MODELS)]) for _ in MACHINES]
    machines = [threading.Thread(target=boot, args=(tally, *machine)) for machine in zip(rigs, MACHINES)]
    try:
        for machine in machines:
            machine.start()
        for machine in machines:
            machine.join()
    finally:
        # Told to end, it has some left; their tests fail then, and end.
        for rig in rigs:
            rig.down()


def boot(tally, rig, tests):
    try:
        with rig:
            for number, test in enumerate(tests):
                if tally.run(test, rig):
                    continue
                # Each leaves the machine as the next one needs it.
                say(rig.run("journalctl", "-b", "-n", "40", "--no-pager", "-o", "short-precise").stdout)
                say(f"NOT RUN: {len(tests) - number - 1} tests after {test.__name__}")
                break
    except subprocess.SubprocessError:
        with tally.lock:
            tally.failed += 1
        traceback.print_exc()


if __name__ == "__main__":
    sys.exit(main())
