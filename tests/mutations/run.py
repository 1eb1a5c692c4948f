"""Applies the mutations of `table`, one at a time, and runs the test that each one names.

A mutation is *caught* when a test fails that passes without it, or when that test does not end within its bound: ten
times what it takes without the mutation, and at least 30 seconds. Everything else is a failure of this script: a
mutation that survives, that does not compile, or whose text does not stand in its file exactly once; a test that does
not pass without any mutation, or that there is not.

The tree is copied, and only the copy is ever changed. Dependencies are compiled once, into the target folder of the
tree (those for loom beside it, in `loom`).
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = pathlib.Path(__file__).with_name("table")
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
COPY = TARGET / "mutations"

# What has no model of its own, and is taken apart by one of loom's preemptions, is so by two.
LOOM = {"RUSTFLAGS": "--cfg on_demand_loom", "CARGO_TARGET_DIR": str(TARGET / "loom")}
PREEMPTIONS = {"LOOM_MAX_PREEMPTIONS": os.environ.get("LOOM_MAX_PREEMPTIONS", "2")}
TESTS = {"CARGO_TARGET_DIR": str(TARGET)}


class Mutation:
    def __init__(self, name, what):
        self.name = name
        self.what = what
        self.hunks = []  # (file, old, new)
        self.before = {}  # the text of each file that is changed
        self.target = self.tests = None

    def files(self):
        return list(dict.fromkeys(file for file, _, _ in self.hunks))

    def changed(self):
        """The files as they are, and as they are with the mutation."""
        before, after = {}, {}
        for file, old, new in self.hunks:
            text = after.get(file) or (ROOT / file).read_text()
            before.setdefault(file, text)
            found = ("\n" + text).count("\n" + old)
            if found != 1:
                raise Rotten(f"its text stands {found} times in {file}, not once:\n{old}")
            at = ("\n" + text).index("\n" + old)
            after[file] = text[:at] + new + text[at + len(old) :]
        return before, after

    def apply(self):
        before, after = self.changed()
        for file, text in after.items():
            if (COPY / file).read_text() != before[file]:
                raise Rotten(f"{file} has changed since it was copied")
        for file, text in after.items():
            self.before[COPY / file] = before[file]
            (COPY / file).write_text(text)

    def undo(self):
        for path, text in self.before.items():
            # With the time of now: cargo goes by that.
            path.write_text(text)


class Rotten(Exception):
    pass


def read_table():
    mutations = []
    file = None
    old, new = [], []

    def end_hunk():
        if old or new:
            mutations[-1].hunks.append((file, "".join(old), "".join(new)))
            old.clear()
            new.clear()

    for number, line in enumerate(TABLE.read_text().splitlines(keepends=True), 1):
        text = line.rstrip("\n")
        if text.startswith("# ") or text == "#":
            continue
        if text.startswith("== "):
            end_hunk()
            mutations.append(Mutation(text[3:], ""))
        elif text.startswith("@ "):
            end_hunk()
            file = text[2:]
        elif text.startswith("> "):
            end_hunk()
            mutations[-1].target, *mutations[-1].tests = text[2:].split()
        elif text == "":
            end_hunk()
        elif text[0] == "-":
            old.append(line[1:])
        elif text[0] == "+":
            new.append(line[1:])
        elif text[0] == " ":
            old.append(line[1:])
            new.append(line[1:])
        else:
            mutations[-1].what = (mutations[-1].what + " " + text).strip()
            if mutations[-1].hunks:
                sys.exit(f"{TABLE}:{number}: not understood: {text}")
    end_hunk()
    for mutation in mutations:
        if not (mutation.what and mutation.hunks and mutation.tests):
            sys.exit(f"{TABLE}: {mutation.name} lacks a text, a change or a test")
    return mutations


def copy_tree():
    """Brings the copy up to date, touching only what differs."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")
    listed = {name for name in listed if name and (ROOT / name).is_file()}
    for path in [path for path in COPY.rglob("*") if path.is_file()]:
        if str(path.relative_to(COPY)) not in listed:
            path.unlink()
    for name in listed:
        source, copy = ROOT / name, COPY / name
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
            os.utime(copy)


def build(target):
    """The test's program, or the compiler's last words."""
    command = ["cargo", "test", "--no-run", "--message-format", "short", "--test", target]
    command += ["--release"] if target == "loom" else ["--all-features"]
    env = {**os.environ, "CARGO_INCREMENTAL": "1", "CARGO_TERM_COLOR": "never"}
    env |= LOOM if target == "loom" else TESTS
    done = subprocess.run(command, cwd=COPY, env=env, capture_output=True, text=True)
    found = re.search(r"Executable .*\((.*)\)", done.stderr)
    if done.returncode != 0 or not found:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr[-2000:]]
        return None, "\n".join(errors[:8])
    return COPY / found[1], None


def run(program, tests, bound=None):
    """Which tests ran, which of them failed, and how it ended: `ok`, `failed`, `hung` or `aborted`."""
    env = {**os.environ, **PREEMPTIONS, "RUST_BACKTRACE": "0", "CARGO_MANIFEST_DIR": str(COPY)}
    child = subprocess.Popen(
        [program, *tests], cwd=COPY, env=env, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=bound)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        output, _ = child.communicate()
        return [], [], "hung", output
    ran = re.findall(r"^test (\S+)(?: - should panic)? \.\.\.", output, re.M)
    failed = re.findall(r"^    (\S+)$", output[output.rfind("\nfailures:\n") :], re.M) if "\nfailures:\n" in output else []
    if child.returncode == 0:
        return ran, [], "ok", output
    if child.returncode < 0:
        return ran, failed, "aborted", output
    return ran, failed, "failed", output


def main():
    sys.stdout.reconfigure(line_buffering=True)  # one at a time, into files too
    mutations = read_table()
    names = [mutation.name for mutation in mutations]
    if twice := {name for name in names if names.count(name) > 1}:
        sys.exit(f"{TABLE}: twice: {', '.join(twice)}")
    wanted = sys.argv[1:]
    if wanted == ["--list"]:
        for it in mutations:
            print(f"{it.name}\n    {it.what}\n    {', '.join(it.files())}; {it.target}: {' '.join(it.tests)}")
        print(f"{len(mutations)} mutations")
        return
    if wanted == ["--check"]:
        rotten = 0
        for it in mutations:
            try:
                it.changed()
            except Rotten as why:
                rotten += 1
                print(f"{it.name}: {why}")
        print(f"mutations: {len(mutations) - rotten} of {len(mutations)} apply")
        sys.exit(1 if rotten else 0)
    if unknown := [name for name in wanted if name not in names]:
        sys.exit(f"no such mutation: {', '.join(unknown)} (--list says which there are)")
    if wanted:
        mutations = [mutation for mutation in mutations if mutation.name in wanted]

    began = time.monotonic()
    COPY.mkdir(parents=True, exist_ok=True)
    copy_tree()
    bad = 0

    # Without any mutation every test there is passes, within its bound.
    bounds = {}
    for target in dict.fromkeys(mutation.target for mutation in mutations):
        program, errors = build(target)
        if errors:
            sys.exit(f"unmutated: {target} does not compile:\n{errors}")
        for tests in dict.fromkeys(tuple(it.tests) for it in mutations if it.target == target):
            start = time.monotonic()
            ran, failed, how, output = run(program, tests, 300)
            took = time.monotonic() - start
            missing = [test for test in tests if not any(test in name for name in ran)]
            if how != "ok" or missing:
                sys.stderr.write(output[-3000:])
                sys.exit(f"unmutated: {target} {' '.join(tests)}: {how}, failed: {failed}, not there: {missing}")
            bounds[target, tests] = max(30.0, 10 * took)
    print(f"unmutated: {len(bounds)} sets of tests pass ({time.monotonic() - began:.0f} s)", flush=True)

    width = max(len(mutation.name) for mutation in mutations)
    for it in mutations:
        start = time.monotonic()
        bound = bounds[it.target, tuple(it.tests)]
        try:
            it.apply()
            program, errors = build(it.target)
            if errors:
                verdict = f"DOES NOT COMPILE\n{errors}"
            else:
                _, failed, how, output = run(program, it.tests, bound)
                failed = ", ".join(f"{it.target} {name}" for name in dict.fromkeys(failed))
                verdict = {
                    "ok": f"SURVIVED {it.target} {' '.join(it.tests)}",
                    "failed": f"caught by {failed}",
                    "aborted": f"caught (aborted) by {failed or it.target + ' ' + ' '.join(it.tests)}",
                    "hung": f"caught (hung for {bound:.0f} s) by {it.target} {' '.join(it.tests)}",
                }[how]
                if how == "failed" and not failed:
                    verdict = f"NO TEST FAILED, and yet it did:\n{output[-2000:]}"
        except Rotten as rotten:
            verdict = f"DOES NOT APPLY: {rotten}"
        finally:
            it.undo()
        bad += not verdict.startswith("caught")
        print(f"{it.name:{width}}  {verdict}  ({time.monotonic() - start:.0f} s)", flush=True)

    took = time.monotonic() - began
    print(f"mutations: {len(mutations) - bad} of {len(mutations)} caught, in {took:.0f} s")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
