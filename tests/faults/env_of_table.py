"""The env of the table of faults of `table.py`: it fails once, at its place. Light to import."""

import os
import signal
import sys
import threading
import time

from tests.support import envs

VICTIM = 1
FAIL = 99
"""The action at which the victim's step fails."""


def fail(fault):
    """Do what the fault says; a process that the env forks may return, and so does its parent."""
    if fault == "raises":
        raise RuntimeError("boom")
    if fault == "raises SystemExit":
        sys.exit(3)
    while fault == "hangs":
        time.sleep(60)
    if fault == "exits":
        os._exit(37)
    if fault == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.startswith("forks") and os.fork() == 0:
        _, _, what = fault.partition(", ")
        if what == "child raises":
            raise RuntimeError("in the child")
        if what == "child exits":
            sys.exit(0)
        if what == "exec fails":
            os.execv("/no/such/program", ["program"])


class Env(envs.CountEnv):
    """A CountEnv that fails once, if it is the victim; ``folder`` keeps what its lives share."""

    def __init__(self, tag, folder, place, fault, life):
        super().__init__(tag, 50)
        self.folder, self.place, self.fault = folder, place, fault
        self.fails = tag == VICTIM or place == "first reset of all"
        self.life = life

    def _at(self, place, *, now=True):
        """Fail if this is the place; return whether it is."""
        if not (self.fails and self.place == place and now):
            return False
        if place != "close of the pool" and envs.count_call(self.folder / f"failed{self.tag}") > 1:
            return False
        fail(self.fault)
        return True

    def reset(self, **kwargs):
        row = super().reset(**kwargs)
        here = self._at("first reset", now=self.resets == 1)
        here |= self._at("first reset of all") or self._at("reset", now=self.resets == 2)
        return None if here and self.fault == "returns nonsense" else row

    def step(self, action):
        row = super().step(action)
        if action == FAIL and self.tag == VICTIM:
            if self._at("step"):
                return row[:4] if self.fault == "returns nonsense" else row
            if self.life == 1 and self.place in ("env_fn at a restart", "close after a crash"):
                raise RuntimeError("crash")
        return row

    def work(self):
        self._at("call")
        return threading.Lock() if self.fails and self.fault == "returns nonsense" else self.tag

    def close(self):
        first = self.life == 1 and self.tag == VICTIM
        self._at("close after a crash", now=first)
        self._at("close at recycling", now=first)
        self._at("close of the pool")
        with (self.folder / "closed").open("a") as file:
            file.write(f"{self.tag}\n")
        return self.fault  # nonsense


def make(tag, folder, place, fault):
    """Make an env, or fail in doing so."""
    life = envs.count_call(folder / f"made{tag}")
    if tag == VICTIM and (place, life) in {("env_fn", 1), ("env_fn at a restart", 2)}:
        told = folder / "told"
        while place == "env_fn" and fault == "hangs" and not told.exists():
            time.sleep(0.001)  # until the caller has warned
        if place != "env_fn" or fault != "hangs":
            fail(fault)
        if fault == "returns nonsense":
            return None
    return Env(tag, folder, place, fault, life)
