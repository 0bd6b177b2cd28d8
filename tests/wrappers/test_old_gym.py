"""`OldGymEnv` beside the same old env stepped by hand, and the errors that name it."""

import copy
import json
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import envpool_py
from envpool_py import DummyVectorEnv, ShmemVectorEnv, cli
from envpool_py.errors import EnvError
from envpool_py.sb3.common.env_checker import EnvCheckError, check_env
from envpool_py.wrappers import OldGymEnv
from tests.support.reference import same

NAMED = r"envpool_py\.wrappers\.OldGymEnv"


class OldSpace(SimpleNamespace):
    """A space of another library: the attributes of gym's, and no class of Gymnasium's."""


def box(*shape, dtype="float32"):
    low = np.full(shape, -1, dtype)
    return OldSpace(low=low, high=-low, shape=shape, dtype=np.dtype(dtype))


OLD = OldSpace(
    spaces={
        "position": box(3),
        "pair": OldSpace(spaces=(OldSpace(n=4, shape=(), dtype=np.dtype(int)), box(dtype="f8"))),
        "keys": OldSpace(n=5, shape=(5,), dtype=np.dtype("int8")),
        "joints": OldSpace(nvec=np.array([2, 3]), shape=(2,), dtype=np.dtype("int64")),
        "new": spaces.Discrete(3, start=1),
        "from_two": OldSpace(n=np.int64(4), start=2, shape=(), dtype=np.dtype(int)),
    }
)
NEW = spaces.Dict(
    {
        "position": spaces.Box(-1, 1, (3,), np.float32),
        "pair": spaces.Tuple([spaces.Discrete(4), spaces.Box(-1, 1, (), np.float64)]),
        "keys": spaces.MultiBinary(5),
        "joints": spaces.MultiDiscrete([2, 3]),
        "new": spaces.Discrete(3, start=1),
        "from_two": spaces.Discrete(4, start=2),
    }
)


class Arm:
    """A simulator with gym's old interface; an episode ends at its goal or after six steps."""

    observation_space, action_space = box(3), box(2)
    task = "push"

    def __init__(self):
        self.random, self.closed = np.random.default_rng(99), False
        self.metadata = {"render.modes": ["rgb_array"]}

    def seed(self, seed=None):
        self.random = np.random.default_rng(seed)
        return [seed]

    def reset(self, start=0):
        self.t = start
        return self.obs()

    def obs(self):
        return self.random.uniform(-1, 1, 3).astype(np.float32)

    def step(self, action):
        self.t += 1
        goal, late = self.random.random() < 0.15, self.t >= 6
        info = {"t": self.t}
        if goal or late:
            info["TimeLimit.truncated"] = not goal
        return self.obs(), float(action[0]) + self.t, np.bool_(goal or late), info

    def render(self, mode="human"):
        return mode, self.t

    def close(self):
        self.closed = True


ACTION = np.array([0.5, 0], np.float32)


def test_rows_are_those_of_the_old_env():
    """Episodes end in both ways."""
    old, env, ended = Arm(), OldGymEnv(Arm()), []
    assert env.observation_space == spaces.Box(-1, 1, (3,), np.float32)
    old.seed(7)
    assert same(env.reset(seed=7), (old.reset(), {}))
    for _ in range(60):
        obs, reward, done, info = old.step(ACTION)
        late = bool(done) and info["TimeLimit.truncated"]
        assert same(env.step(ACTION), (obs, reward, bool(done) and not late, late, info))
        if done:
            ended.append(late)
            assert same(env.reset()[0], old.reset())
    assert {*ended} == {False, True}


def test_attributes_in_a_pool():
    with envpool_py.make(Arm, 3, wrappers=[OldGymEnv], backend="dummy") as envs:
        envs.reset(seed=7)
        envs.set_env_attr("task", "pull", 1)
        assert envs.get_env_attr("task") == ["push", "pull", "push"]
        assert envs.apply(lambda env: env.env.task) == ["push", "pull", "push"]


def test_spaces_are_converted():
    env = OldGymEnv(Arm(), observation_space=OLD)
    assert env.observation_space == NEW
    new = spaces.Discrete(2)
    assert OldGymEnv(Arm(), action_space=new).action_space is new
    with pytest.raises(TypeError, match="no space of Gymnasium"):
        OldGymEnv(Arm(), action_space=OldSpace(alphabet="ab"))
    bare = SimpleNamespace(reset=None, step=None, action_space=new)
    with pytest.raises(TypeError, match="has no observation_space; pass observation_space="):
        OldGymEnv(bare)
    assert OldGymEnv(bare, observation_space=new).observation_space is new


def test_seed_options_and_rendering():
    env = OldGymEnv(Arm(), render_mode="rgb_array")
    assert env.reset(seed=3)[0].tolist() == env.reset(seed=3)[0].tolist()
    env.reset(options={"start": 4})
    assert env.t == 4
    assert env.metadata == {"render_modes": ["rgb_array"]}
    assert env.render() == ("rgb_array", 4)
    twin = copy.deepcopy(env)
    assert np.array_equal(twin.step(ACTION)[0], env.step(ACTION)[0])
    env.close()
    assert env.env.closed
    with pytest.raises(TypeError, match="unexpected keyword argument 'size'"):
        env.reset(options={"size": 4})
    with pytest.raises(AttributeError, match="size"):
        _ = env.size


class Between(Arm):
    """The interface between the two: `reset` takes a seed, and there is no `seed`."""

    seed = None

    def reset(self, *, seed=None):
        if seed is not None:
            self.random = np.random.default_rng(seed)
        return Arm.reset(self)


class Newer(Between):
    """Gymnasium's interface with the spaces of gym."""

    def reset(self, *, seed=None):
        return Between.reset(self, seed=seed), {"begun": True}

    def step(self, action):
        obs, reward, done, info = Arm.step(self, action)
        return obs, reward, False, bool(done), info


def test_newer_versions_of_gym():
    old = Arm()
    old.seed(5)
    first = old.reset()
    assert np.array_equal(OldGymEnv(Between()).reset(seed=5)[0], first)
    env = OldGymEnv(Newer())
    obs, info = env.reset(seed=5)
    assert np.array_equal(obs, first)
    assert info == {"begun": True}
    assert len(env.step(ACTION)) == 5


def test_a_pair_with_a_dict_is_an_observation_of_a_tuple_space():
    pair = spaces.Tuple([spaces.Discrete(2), spaces.Dict({"a": spaces.Discrete(2)})])
    env = Arm()
    env.reset = lambda: (1, {"a": 0})
    assert OldGymEnv(env, observation_space=pair).reset() == ((1, {"a": 0}), {})


class NoSeed(Arm):
    observation_space, action_space = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))


class HalfNew(NoSeed, gym.Env):
    def reset(self, **_):
        return Arm.reset(self), {}


@pytest.mark.parametrize("backend", [DummyVectorEnv, ShmemVectorEnv])
def test_errors_name_the_wrapper(backend):
    with pytest.raises(TypeError, match=f"a space that is not Gymnasium's.*{NAMED}"):
        backend([Arm]).reset()
    with backend([NoSeed]) as envs:
        text = rf"takes no seed.*`def reset\(self, \*, seed=None.*{NAMED}"
        with pytest.raises(EnvError, match=text):
            envs.reset(seed=0)
        with pytest.raises(EnvError, match=rf"must return \(obs, info\), got ndarray.*{NAMED}"):
            envs.reset()
    with backend([HalfNew]) as envs:
        envs.reset(seed=0)
        with pytest.raises(EnvError, match=f"got 4 values.*{NAMED}"):
            envs.step([ACTION])


@pytest.mark.parametrize("errors", [0, 1])
def test_the_command_check(errors, capsys):
    wrapper = [] if errors else ["--wrapper", "envpool_py.wrappers:OldGymEnv"]
    status = cli.main(["check", f"{__name__}:Arm", *wrapper, "--json", "-"])
    out = capsys.readouterr().out
    assert (status, json.loads(out)["errors"]) == (errors, errors)
    assert ("OldGymEnv" in out.partition("stages")[2]) == bool(errors)


def test_the_checker_of_sb3():
    with pytest.raises(EnvCheckError, match=f"got 4 values.*{NAMED}"):
        check_env(HalfNew())
