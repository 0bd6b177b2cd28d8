"""`restart`: envs and ended processes are recreated, and go on with their schedule of seeds."""

import contextlib
import functools
import os
import signal

import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

from envpool_py import EnvError, WorkerDiedError
from envpool_py.seeding import of_episode
from envpool_py.worker import processes
from envpool_py.worker.channel import is_readable
from tests.faults import helpers
from tests.faults.helpers import EACH, FNS, GOOD, MODES, NEW, PROCESSES, RESTART, kill, reset_pool
from tests.support import envs
from tests.support.places import PLACES, slow


@pytest.mark.parametrize("place", EACH)
def test_a_restarted_env_is_new_and_the_others_are_not(place):
    with reset_pool(place) as pool:
        pool.step(GOOD)
        pool.set_env_attr("mark", 7)
        pids = pool.call("pid")
        pool.restart(1)
        with pytest.raises(ResetNeeded, match="env 1: reset before step"):
            pool.step(GOOD)
        assert pool.get_env_attr("mark", [0, 2]) == [7, 7]
        with pytest.raises(AttributeError):
            pool.get_env_attr("mark", 1)
        assert pool.step([""] * 2, [0, 2])[0][:, 2].tolist() == [2, 2]
        assert pool.reset(1)[0].tolist() == [[1, 0, 0]]  # its episode 0 again
        assert pool.call("pid") == pids
    with pytest.raises(ClosedEnvironmentError):
        pool.restart()


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize(
    ("place", "how", "on_error"),
    [
        *((place, "dies", "raise") for place in PROCESSES),
        *slow(*((place, "dies", "raise") for place in NEW)),
        ("shmem-fork", "unseen", "raise"),
        ("shmem-fork-packed", "unseen", "restart"),
        ("shmem-fork", "hangs", "raise"),
        *(("shmem-fork-packed", "hangs", on_error) for on_error in ("restart", "replay")),
    ],
)
def test_a_process_is_started_again_with_all_its_envs(place, how, on_error):
    """One that has ended, which a call may have seen or not, or one that a cancelled step fills."""
    with reset_pool(place, on_error=on_error) as pool:
        pids = pool.call("pid")
        mates = helpers.mates_of(pool, 1)
        if how == "hangs":
            pool.send(["hang"], [1])
            pool.cancel([1])
        else:
            kill(pool, 1)
        if how == "dies":
            with pytest.raises(WorkerDiedError):
                pool.step(GOOD)
        kept = pool.waiting_id
        pool.restart(1)
        if kept:  # rows that were finished survive a restart
            rows = pool.drain()
            assert [info["env_id"] for info in rows[4]] == kept
            assert rows[0][:, 2].tolist() == [1] * len(kept)
        after = pool.call("pid")
        assert [i for i in range(3) if after[i] != pids[i]] == mates
        for i in mates if how == "dies" else ():
            with pytest.raises(ResetNeeded):
                pool.step([""], [i])
        obs, infos = pool.reset(seed=3)
        assert obs[1].tolist() == [1, 0, 0]
        assert [info["env_id"] for info in infos] == [0, 1, 2]
        assert pool.step(GOOD)[0][:, 2].tolist() == [1, 1, 1]


def test_a_process_is_started_again_before_all_its_errors_were_raised():
    with reset_pool("shmem-fork", num_processes=1) as pool:
        pool.send(["SIGKILL", "", ""])
        with pytest.raises(WorkerDiedError, match="env 0: the worker process was killed"):
            pool.step(None, [0])
        pool.restart([0])
        with pytest.raises(WorkerDiedError, match="env 1: the worker process was killed"):
            pool.recv()
        obs, infos = pool.reset()
        assert obs.tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
        assert [info["step"] for info in infos] == [0, 0, 0]
        assert pool.step(GOOD)[0][:, 2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("on_error", ["raise", "restart"])
def test_a_row_that_had_arrived_is_whole_after_a_restart(on_error):
    with reset_pool("shmem-fork", num_processes=1, wait_num=1, on_error=on_error) as pool:
        pool.send(["", ""], [1, 2])
        pool.step(None, [2])  # the row of env 1 has arrived before it
        pool.send(["SIGKILL"], [0])
        if on_error == "raise":
            with pytest.raises(WorkerDiedError, match="env 0: "):
                pool.step(None, [0])
            pool.restart([0])
        else:
            assert pool.step(None, [0])[3].tolist() == [True]
        pool.reset([0])
        obs, *_, infos = pool.step(None, [1])
        assert obs.tolist() == [[1, 0, 1]]
        assert infos[0]["action"] == "", "a text is pickled beside the row"


def test_an_env_whose_cancelled_step_ends_keeps_its_process(monkeypatch):
    with reset_pool("shmem-fork-packed") as pool:
        pids = pool.call("pid")
        pool.send(GOOD)
        pool.cancel()
        pool.reset()
        pool.restart()
        assert pool.call("pid") == pids
        monkeypatch.setattr(processes, "GRACE", 0.0)
        for first in ("cancel", "row"):
            pool.reset()
            pool.send([""], [1])
            if first == "cancel":
                pool.cancel([1])
            assert is_readable(pool.engine.hosts.processes.channel.results, 60)
            if first == "row":
                pool.cancel([1])
            pool.restart([1])  # its late row is there already
            assert pool.call("pid") == pids


def once(times):
    if times > 1:
        raise OSError(f"made {times} times")


@pytest.mark.parametrize("place", EACH)
def test_an_env_fn_that_fails_the_second_time_is_named(place, tmp_path):
    fns = [FNS[0], functools.partial(helpers.made, 1, tmp_path / "made", once)]
    with reset_pool(place, fns) as pool:
        pool.send([""] * 2)
        pool.cancel()  # a late row is not taken for the answer
        with pytest.raises(EnvError, match=r"env 1: .*OSError: made 2 times") as caught:
            pool.restart()
        assert isinstance(caught.value, OSError)
        assert pool.reset(0)[0].shape == (1, 3)


def test_an_env_fn_that_fails_in_a_new_process_is_named(tmp_path):
    fns = [*FNS[:2], functools.partial(helpers.made, 2, tmp_path / "made", once)]
    with reset_pool("shmem-fork-packed", fns) as pool:
        pool.send(GOOD)
        pool.cancel()
        pool.reset()
        kill(pool, 2)
        with pytest.raises(OSError, match=r"env 2: env_fn raised OSError: made 2 times"):
            pool.restart(2)
        with pytest.raises(WorkerDiedError, match="env 2: .* while starting"):
            pool.reset([2])
        helpers.goes_on(pool, [0, 1])


def test_a_restart_by_hand_renews_the_budget_of_the_whole_process():
    """Finding 24: the envs that share the process are recreated too."""
    with reset_pool("shmem-fork", num_processes=1, max_restarts=1, **RESTART) as pool:
        for _ in range(2):
            kill(pool, 0)
            assert pool.step(GOOD)[3].tolist() == [True] * 3
            assert pool.reset()[0].tolist() == [[i, 0, 0] for i in range(3)]
            kill(pool, 0)
            with pytest.raises(WorkerDiedError):  # all budgets are spent
                pool.step(GOOD)
            with contextlib.suppress(WorkerDiedError):
                pool.drain()
            pool.restart([0])
            assert pool.reset()[0].tolist() == [[i, 0, 0] for i in range(3)]
            assert pool.step(GOOD)[0][:, 2].tolist() == [1] * 3


# ------------------------------- finding 2: the schedule of seeds goes on in a new process

SEED = 11
POLICIES = {"by hand": {}, "restart": RESTART}


def episode_of(i, seed):
    """Return the number of the episode of env ``i`` that has this seed."""
    return [of_episode(SEED + i, number) for number in range(50)].index(seed)


class ScheduleEnv(envs.CountEnv):
    """Remembers the seeds of its resets; the next one does as ``fault`` says."""

    def __init__(self, tag, gate=None):
        super().__init__(tag, length=1)
        self.gate, self.fault = gate, ""
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        fault, self.fault = self.fault, ""
        if fault == "wait":
            self.gate.wait()
        if fault == "die":
            os._exit(37)
        if fault == "raise":
            raise ValueError("no such episode")
        return super().reset(seed=seed, options=options)


@contextlib.contextmanager
def scheduled(place, policy, gates=(None,) * 3, **options):
    """Make a pool of ScheduleEnvs, whose first episodes have begun."""
    fns = [functools.partial(ScheduleEnv, i, gates[i]) for i in range(3)]
    with PLACES[place](fns, episode_seeds=True, **POLICIES[policy], **options) as pool:
        pool.reset(seed=SEED)
        yield pool


def recreated(pool, policy):
    """Kill the process of env 1, have it recreated, reset; return each env's episode."""
    kill(pool, 1)
    if policy == "by hand":
        pool.restart([1])
    return [episode_of(info["env_id"], info["seed"]) for info in pool.reset()[1]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("place", "policy"), [("shmem-fork", "by hand"), *((PROCESSES[1], one) for one in POLICIES)]
)
def test_a_cancelled_request_that_began_an_episode_counts(place, policy, mode, gates):
    with scheduled(place, policy, gates, autoreset_mode=mode) as pool:
        if mode == "next_step":
            assert pool.step([0], [1])[2].tolist() == [True]
        pool.set_env_attr("fault", "wait", [1])
        pool.send_reset([1]) if mode is None else pool.send([0], [1])
        with gates[1].held():  # in the reset
            pool.cancel([1])
        reached = pool.get_env_attr("seeds", [1])[0]
        assert [episode_of(1, seed) for seed in reached] == [0, 1]
        assert recreated(pool, policy) == [1, 2, 1]
        assert recreated(pool, policy) == [2, 3, 2]


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_schedule_goes_on_after_an_automatic_reset_that_raised(policy, mode):
    with scheduled("shmem-fork-packed", policy, autoreset_mode=mode) as pool:
        pool.set_env_attr("fault", "raise", [1])
        assert pool.step([0], [1])[2].tolist() == [True]
        if policy == "by hand":
            with pytest.raises(ValueError, match="env 1: reset raised ValueError: no such episode"):
                pool.step([0], [1])
            info = pool.reset([1])[1][0]
        else:
            info = pool.step([0], [1])[4][0]
            assert "no such episode" in info["env_error"]
        number = episode_of(1, info["seed"])
        assert number in (1, 2), "the seed of the reset that raised, or the one after it"
        assert recreated(pool, policy) == [1, number + 1, 1]
        assert recreated(pool, policy) == [2, number + 2, 2]


@pytest.mark.parametrize("policy", POLICIES)
def test_episodes_whose_resets_were_not_answered_come_again(policy):
    """Env 2 ends the process, in which the other two have carried out their resets."""
    with scheduled("shmem-fork", policy, num_processes=1) as pool:
        pool.set_env_attr("fault", "die", [2])
        if policy == "by hand":
            with pytest.raises(WorkerDiedError, match="was also that of"):
                pool.reset()
            pool.restart()
        infos = pool.reset()[1]
        assert [episode_of(info["env_id"], info["seed"]) for info in infos] == [1, 1, 1]
        assert recreated(pool, policy) == [2, 2, 2]


# The handler may raise while the env opens the file of its gate: Python can only warn of that file.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_an_interrupted_reset_counts_if_it_reached_the_env(place, gates, beside):
    def interrupt():
        with gates[2].held():
            helpers.signalling()()

    handler = helpers.raising(InterruptedError("mine"))
    with scheduled(place, "by hand", gates) as pool:
        pool.set_env_attr("fault", "wait", [2])
        with helpers.handling(signal.SIGUSR1, handler):
            helper = beside(interrupt)
            with pytest.raises(InterruptedError, match="mine"):
                pool.reset()
            helper.finish()
        reached = [len(seeds) for seeds in pool.get_env_attr("seeds")]
        assert reached[2] == 2
        if place != "dummy":
            kill(pool, 1)
        pool.restart([1])
        infos = pool.reset()[1]
        assert [episode_of(info["env_id"], info["seed"]) for info in infos] == reached
