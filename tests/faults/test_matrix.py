"""Every fault, at every moment, in every mode: reported once, and the rows of the others unchanged.

The rows are those of envs that are stepped by hand, up to the report of a failure: that is one row,
with the last observation that was returned. After it the env goes on for whole episodes.
"""

import functools
import itertools

import numpy as np
import pytest

from tests.faults import helpers
from tests.support import envs, places
from tests.support.reference import HandStepped

SEED, VICTIM, AT = 7, 1, 4
FAULTS = ["value", "SIGSEGV", "SIGKILL", "os._exit", "hang"]
MOMENTS = ["step", "reset", "automatic reset", "idle", "env_fn"]
MODES = [None, "next_step", "same_step"]


class Env(envs.RandomEnv):
    """A `RandomEnv` with episodes of 3 steps; the victim fails once in all, at its moment."""

    def __init__(self, tag, path=None, fault="", moment=""):
        if moment == "env_fn" and envs.count_call(path / "made") == 2:
            envs.FaultEnv().fault(fault)
        super().__init__(tag)
        self.path, self.fault, self.moment = path, fault, moment
        self.count = self.resets = 0

    def fails(self, moment):
        if self.moment == moment and envs.count_call(self.path / "failed") == 1:
            envs.FaultEnv().fault(self.fault)

    def reset(self, **kwargs):
        self.resets += 1
        if self.resets > 1:
            self.fails("reset")
            self.fails("automatic reset")
        self.count = 0
        return super().reset(**kwargs)

    def step(self, action):
        self.count += 1
        if self.resets > 1 and self.count == 2:
            self.fails("step")
            if self.moment == "env_fn" and envs.count_call(self.path / "failed") == 1:
                # In its process an env_fn has no time limit.
                envs.FaultEnv().fault("SIGKILL" if self.fault == "hang" else "value")
        obs, reward, *_, info = super().step(action)
        return obs, reward, self.count == 3, False, info


# Which faults can be where; in an env_fn is no time limit.
GROUPS = [
    (["shmem-fork", "shmem-fork-packed"], FAULTS, MOMENTS),
    (["dummy", "shmem-fork-caller", "thread"], ["value"], MOMENTS),
    (["thread", "thread-packed"], ["loop"], MOMENTS[:3]),
]


def cases():
    """Return the cases: one of each fault at each moment runs in each group, the others soak."""
    for where, faults, moments in GROUPS:
        for number, (fault, moment) in enumerate(itertools.product(faults, moments)):
            if (moment, fault) == ("idle", "value"):
                continue
            modes = MODES[moment == "automatic reset" :]
            every = list(itertools.product(modes, where, [0, 1]))
            chosen = 5 * number % len(every)  # modes, places and batches change each time
            for k, case in enumerate(every):
                slow = [pytest.mark.slow] if fault != "value" else []
                marks = slow if k == chosen else [pytest.mark.soak]
                yield pytest.param(fault, moment, *case, marks=marks)


@pytest.mark.parametrize(("fault", "moment", "mode", "place", "partial"), list(cases()))
def test_a_failure_is_one_row(fault, moment, mode, place, partial, tmp_path):
    check_a_failure(fault, moment, mode, place, partial, tmp_path)


def check_a_failure(fault, moment, mode, place, partial, tmp_path):
    fns = [functools.partial(Env, tag) for tag in range(3)]
    fns[VICTIM] = functools.partial(Env, VICTIM, tmp_path, fault, moment)
    options = {"on_error": "restart", "restart_backoff": 0.0, "autoreset_mode": mode}
    if fault in ("hang", "loop"):
        options["step_timeout"] = 2.0
    with places.PLACES[place](fns, wait_num=1 if partial else None, **options) as pool:
        mates = helpers.mates_of(pool, VICTIM)
        hand = HandStepped([functools.partial(Env, tag) for tag in range(3)], mode)
        last = list(pool.reset(seed=SEED)[0])
        rows = hand.reset(seeds=[SEED, SEED + 1, SEED + 2])
        assert np.array_equal(last, [each.obs for each in rows])
        reports, ends = [], [0] * 3  # the envs that were reported, the ends of episodes after that

        def check(i, row, info, expected):
            if "env_error" in info:
                reports.append(i)
                if row and not info.get("is_reset"):  # else a reset has reported it
                    assert (row[1], *row[2:]) == (0.0, False, True)
                    before = info["final_obs"] if mode == "same_step" else row[0]
                    assert np.array_equal(before, last[i]), "the last observation"
            elif i not in reports:
                # If the automatic reset fails, the ended row has the last observation again.
                first = i == VICTIM and mode == "same_step" and "reset" in moment and row[2]
                (by_hand,) = expected()
                values = by_hand.obs, by_hand.reward, by_hand.terminated, by_hand.truncated
                for part, value in list(zip(row, values, strict=True))[int(first) :]:
                    assert np.array_equal(part, value), f"env {i}"

        for step in range(24):
            if moment == "idle" and step == AT:
                helpers.kill(pool, VICTIM)
            pool.send([step % 4] * 3)
            left = 3
            while left:
                batch = pool.recv()
                left -= len(batch[4])
                for k, info in enumerate(batch[4]):
                    i, row = info["env_id"], [part[k] for part in batch[:4]]
                    check(i, row, info, functools.partial(hand.step, [step % 4], [i]))
                    last[i] = row[0]
                    ends[i] += bool(i in reports and (row[2] or row[3]))
                    if mode is None and (row[2] or row[3]):
                        obs, infos = pool.reset([i])
                        row = [obs[0], 0.0, False, False]
                        shown = row if "env_error" not in infos[0] else ()
                        check(i, shown, infos[0], functools.partial(hand.reset, [i]))
                        last[i] = obs[0]
        lost = [VICTIM] if fault == "value" and moment != "idle" else mates
        assert sorted(reports) == sorted(lost), "each env once"
        assert all(ends[i] >= 3 for i in lost), "they go on"
