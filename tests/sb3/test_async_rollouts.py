"""``AsyncRollouts``: equal to Stable-Baselines3 with whole batches; partial ones by hand."""

import functools
import itertools
import os

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.common.vec_env as sb3
import torch
from sb3_contrib import TRPO, MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, StopTrainingOnMaxEpisodes

import envpool_py.sb3 as own
from envpool_py.sb3 import AsyncRollouts
from envpool_py.sb3.partial_steps import PartialSteps
from tests.sb3.conftest import BACKENDS
from tests.sb3.envs import WalkEnv
from tests.sb3.reference import assert_same, theirs_like
from tests.sb3.test_algorithms import ON_POLICY, monitored, weights
from tests.support import doors


class AsyncPPO(AsyncRollouts, PPO):
    pass


class AsyncMaskablePPO(AsyncRollouts, MaskablePPO):
    pass


class MaskedEnv(WalkEnv):
    def action_masks(self):
        return np.arange(3) != self.left % 3

    def step(self, action):
        assert self.action_masks()[action]
        return super().step(action)


BOX = functools.partial(WalkEnv, action="box")
DICT = functools.partial(WalkEnv, "vectors")


@pytest.mark.parametrize(
    ("backend", "classes", "env_fn"),
    [("dummy", (AsyncPPO, PPO), DICT), ("shmem", (AsyncMaskablePPO, MaskablePPO), MaskedEnv)],
)
def test_with_whole_batches_the_weights_are_theirs(backend, classes, env_fn):
    found = []
    for cls, options in zip(classes, ({"wait_num": 4}, {}), strict=True):
        venv = own.VecNormalize(own.VecFrameStack(BACKENDS[backend](monitored(env_fn)), 2))
        kind = "MultiInput" if env_fn is DICT else "Mlp"
        model = cls(f"{kind}Policy", venv, **ON_POLICY, **options)
        model.learn(256)
        model.learn(100, reset_num_timesteps=False)
        episodes = [(ep["r"], ep["l"]) for ep in model.ep_info_buffer]
        rms = vars(venv.ret_rms)
        found.append((weights(model), model.num_timesteps, episodes, rms))
    assert_same(*found)


class Steps(BaseCallback):
    """Keeps what a callback sees, and the buffer and statistics when a rollout has ended."""

    def __init__(self):
        super().__init__()
        self.seen, self.rollouts = [], []

    def _on_step(self):
        names = ("new_obs", "rewards", "dones", "infos", "actions")
        self.seen.append({name: self.locals[name] for name in names})
        self.seen[-1]["rewards"] = self.seen[-1]["rewards"].copy()
        assert not self.seen[1:] or self.num_timesteps == 4 * len(self.seen)
        return True

    def _on_rollout_end(self):
        assert not self.model.env.unwrapped.pool.waiting_id
        self.training_env.env_method("told", 1, id=2)
        buffer = self.locals["rollout_buffer"]
        names = ("observations", "actions", "episode_starts")
        self.rollouts.append({name: getattr(buffer, name).copy() for name in names})


@pytest.mark.parametrize(("backend", "wait_num"), [("dummy", None), ("shmem", 1), ("shmem", 3)])
def test_rows_of_partial_batches_equal_hand_stepped_envs(backend, wait_num):
    """Each env's rows are those of the env alone, whenever they came; four rollouts in a row."""
    steps = Steps()
    venv = own.VecMonitor(own.VecFrameStack(BACKENDS[backend]([WalkEnv] * 4), 2))
    model = AsyncPPO("MlpPolicy", venv, wait_num=wait_num, **ON_POLICY)
    model.learn(4 * 128, callback=steps)
    # The same actions, one VecEnv of Stable-Baselines3 with all envs in step.
    theirs = sb3.VecMonitor(sb3.VecFrameStack(theirs_like(venv, [WalkEnv] * 4), 2))
    theirs.seed(0)
    obs, starts = theirs.reset(), np.ones(4)
    assert len(steps.seen) == model.num_timesteps / 4 == 4 * 32
    for number, seen in enumerate(steps.seen):
        rollout, t = steps.rollouts[number // 32], number % 32
        assert_same(rollout["observations"][t], obs)
        assert_same(rollout["episode_starts"][t], starts.astype(np.float32))
        assert_same(rollout["actions"][t].ravel(), seen["actions"].ravel())
        obs, rewards, starts, infos = theirs.step(seen["actions"])
        assert_same(seen["new_obs"], obs)
        assert_same(seen["rewards"], rewards)
        assert_same(seen["dones"], starts)
        for info in (*infos, *seen["infos"]):
            if "episode" in info:
                del info["episode"]["t"]
        assert_same(seen["infos"], infos)
    assert_same(model.env.stacked_obs.stacked_obs, theirs.venv.stacked_obs.stacked_obs)


def test_partial_batches_of_masked_actions():
    """The env asserts that each action is allowed by its own mask."""
    venv = own.SubprocVecEnv(monitored(MaskedEnv), start_method="fork")
    model = AsyncMaskablePPO("MlpPolicy", venv, wait_num=1, **ON_POLICY)
    model.learn(256)
    buffer = model.rollout_buffer
    allowed = buffer.action_masks[np.arange(128), buffer.actions.ravel().astype(int)]
    assert allowed.all()


@pytest.mark.parametrize("package", [own, sb3])
def test_statistics_of_partial_batches_are_over_the_same_rows(package):
    steps = Steps()
    venv = package.VecNormalize(own.DummyVecEnv([WalkEnv] * 4), norm_obs=False, gamma=0.5)
    raw = package.VecNormalize(venv, norm_reward=False)
    model = AsyncPPO("MlpPolicy", raw, wait_num=2, **ON_POLICY)
    model.learn(256, callback=steps)
    assert raw.obs_rms.count == pytest.approx(4 + 256)
    # The same actions, in whole batches.
    inner = sb3.VecNormalize(sb3.DummyVecEnv([WalkEnv] * 4), norm_obs=False, gamma=0.5)
    theirs = sb3.VecNormalize(inner, norm_reward=False)
    theirs.seed(0)
    theirs.reset()
    for seen in steps.seen:
        theirs.step(seen["actions"])
    np.testing.assert_allclose(raw.obs_rms.mean, theirs.obs_rms.mean, atol=1e-4)
    np.testing.assert_allclose(raw.obs_rms.var, theirs.obs_rms.var, rtol=1e-3)
    np.testing.assert_allclose(venv.ret_rms.var, inner.ret_rms.var, rtol=1e-2)
    np.testing.assert_allclose(venv.returns, inner.returns, atol=1e-6)
    assert_same(raw.old_obs, theirs.old_obs)


def test_a_fast_env_goes_ahead_of_the_others(tmp_path):
    """Env 0 cannot finish its first step before env 1 has made all of its own."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    class Gated(WalkEnv):
        def __init__(self, tag):
            super().__init__()
            self.tag, self.count = tag, 0

        def step(self, action):
            self.count += 1
            if self.tag == 0 and self.count == 1:
                os.open(gate, os.O_RDONLY)  # blocks until env 1 opens the other end
            if self.tag == 1 and self.count == 32:
                os.close(os.open(gate, os.O_WRONLY))
            return super().step(action)

    venv = own.SubprocVecEnv([functools.partial(Gated, i) for i in range(2)], start_method="fork")
    AsyncPPO("MlpPolicy", venv, wait_num=1, **ON_POLICY).learn(64)


def test_by_default_a_rollout_waits_for_all_envs_if_that_took_less_time(monkeypatch):
    """Every eighth rollout tries the other way."""
    model = AsyncPPO("MlpPolicy", own.DummyVecEnv([WalkEnv] * 4), **ON_POLICY)
    waited, seconds = [], ([0.0, 0.0], [2.0, 0.0], [2.0, 1.0], [1.0, 2.0])
    wrapped = PartialSteps.recv

    def recv(partial):
        waited[-1].add(partial.pool.wait_num)
        return wrapped(partial)

    monkeypatch.setattr(PartialSteps, "recv", recv)
    for number in range(8):
        waited.append(set())
        model._seconds = seconds[min(number, 3)].copy()
        model.learn(128, reset_num_timesteps=False)
        assert all(model._seconds) or number < 2
    # Whole batches are those of Stable-Baselines3's own loop.
    assert waited == [{1}, set(), set(), *[{1}] * 4, set()]


def test_their_callbacks_and_files(tmp_path):
    """The frequencies of callbacks count steps of all envs, whatever the batches are."""
    venv = own.VecNormalize(own.DummyVecEnv(monitored()))
    evaluated = own.VecNormalize(own.DummyVecEnv(monitored(n=2)), training=False)
    path = str(tmp_path)
    evaluation = EvalCallback(evaluated, None, None, 3, 32, path, path, verbose=0)
    model = AsyncPPO("MlpPolicy", venv, wait_num=2, **ON_POLICY)
    assert model.get_vec_normalize_env() is model.get_env() is venv
    model.learn(256, callback=evaluation)
    assert len(np.load(tmp_path / "evaluations.npz")["results"]) == 2
    assert evaluated.obs_rms.count > 1  # their callback has put the statistics of training there
    model.save(tmp_path / "model")
    loaded = AsyncPPO.load(tmp_path / "model", env=venv, device="cpu")
    assert loaded.wait_num == 2
    assert_same(weights(loaded), weights(model))
    loaded.learn(128, reset_num_timesteps=False)
    plain = PPO.load(tmp_path / "model", env=venv, device="cpu")
    plain.learn(128, reset_num_timesteps=False)
    assert venv.unwrapped.pool.wait_num == 4
    assert venv.unwrapped.pool.timeout is None


@pytest.mark.parametrize("wait_num", [1, 4])
def test_training_that_a_callback_ends_can_go_on(wait_num):
    venv = own.VecNormalize(own.DummyVecEnv(monitored()))
    model = AsyncPPO("MlpPolicy", venv, wait_num=wait_num, **ON_POLICY)
    model.learn(10_000, callback=StopTrainingOnMaxEpisodes(3))
    assert model.num_timesteps < 128
    assert not venv.unwrapped.pool.waiting_id
    assert_same(venv.normalize_obs(venv.old_obs).shape, model._last_obs.shape)
    model.learn(128, reset_num_timesteps=False)
    venv.step(np.zeros(4, int))


class FailsIn(WalkEnv):
    """Raises in the steps of one episode, the first of which has the number 1."""

    def __init__(self, fails_in=None):
        super().__init__()
        self.fails_in = fails_in

    def step(self, action):
        row = super().step(action)
        if len(self.log) == self.fails_in:
            raise ValueError("boom")
        return row


FAILING = [functools.partial(FailsIn, 3 if i == 1 else None) for i in range(4)]


def test_an_env_that_fails_ends_the_call_and_the_next_one_starts_anew():
    venv = own.VecMonitor(BACKENDS["shmem"](FAILING))
    model = AsyncPPO("MlpPolicy", venv, wait_num=1, **ON_POLICY)
    with pytest.raises(ValueError, match="env 1: step raised ValueError: boom"):
        model.learn(10_000)
    assert not venv.unwrapped.pool.waiting_id
    venv.set_attr("fails_in", None)
    model.learn(256, reset_num_timesteps=False)


def test_an_env_that_fails_after_a_callback_has_ended_the_training():
    class Ends(BaseCallback):
        def _on_step(self):
            for env in self.training_env.envs:
                env.fails_in = len(env.log)  # its next step raises
            return False

    with own.DummyVecEnv([FailsIn] * 4) as venv:
        model = AsyncPPO("MlpPolicy", venv, wait_num=1, **ON_POLICY)
        model.learn(10_000, callback=Ends())
        model.learn(128, reset_num_timesteps=False)


def test_restarts():
    venv = own.VecMonitor(BACKENDS["shmem"](FAILING, on_error="restart", restart_backoff=0.0))
    steps = Steps()
    AsyncPPO("MlpPolicy", venv, wait_num=1, **ON_POLICY).learn(512, callback=steps)
    infos = [info for seen in steps.seen for info in seen["infos"]]
    lost = [info for info in infos if "env_error" in info]
    assert len(lost) == venv.unwrapped.pool.restarts.sum() > 1
    assert all(info["TimeLimit.truncated"] for info in lost)


class Own(own.VecEnvWrapper):
    def __init__(self, venv):
        super().__init__(venv)
        self.count = np.zeros(self.num_envs)

    def reset(self):
        return self.venv.reset()

    def step_wait(self):
        obs, rewards, dones, infos = self.venv.step_wait()
        self.count += 1
        return obs, rewards, dones, infos


class Told(Own):
    per_env = ("count",)


def test_wrappers_of_your_own():
    venv = own.DummyVecEnv([WalkEnv] * 4)
    with pytest.raises(ValueError, match="Own cannot step some envs alone: .* per_env"):
        AsyncPPO("MlpPolicy", Own(venv), **ON_POLICY)
    told = Told(venv)
    AsyncPPO("MlpPolicy", told, wait_num=1, **ON_POLICY).learn(128)
    assert told.count.tolist() == [32] * 4


class OwnLoop(PPO):
    def collect_rollouts(self, *args, **kwargs):
        return super().collect_rollouts(*args, **kwargs)


USES = {
    "get_attr": lambda venv: venv.get_attr("left"),
    "set_attr": lambda venv: venv.set_attr("mark", 1),
    "env_method": lambda venv: venv.env_method("told", 1, id=2, indices=[0]),
    "env_is_wrapped": lambda venv: venv.env_is_wrapped(gym.Wrapper),
    "get_images": lambda venv: venv.get_images(),
    "reset": lambda venv: venv.reset(),
    "step": lambda venv: venv.step([0] * 4),
}


class Using(BaseCallback):
    """Uses the envs where a rollout starts and ends, and in each step."""

    refused = 0

    def _on_rollout_start(self):
        assert self.training_env.get_attr("render_mode") == [None] * 4

    _on_rollout_end = _on_rollout_start

    def _on_step(self):
        if not self.training_env.unwrapped.pool.waiting_id:
            return True  # the last step of a rollout
        for use in USES.values():
            text = "call it in _on_rollout_start or _on_rollout_end"
            with pytest.raises(gym.error.AlreadyPendingCallError, match=text):
                use(self.training_env.unwrapped)
            self.refused += 1
        return True


def test_a_callback_that_uses_the_envs_while_some_are_in_flight(make):
    """Is told where to do so; the rollout goes on unharmed, and afterwards all is allowed."""
    venv, callback = make([WalkEnv] * 4), Using()
    model = AsyncPPO("MlpPolicy", venv, wait_num=1, **ON_POLICY)
    model.learn(2 * 128, callback=callback)
    assert model.num_timesteps == 256
    assert callback.refused >= 7 * 2 * 24
    for name, use in USES.items():
        if name != "get_images":  # which warns
            use(venv)


def test_what_is_refused(tmp_path):
    venv = own.DummyVecEnv([functools.partial(WalkEnv, render_mode="rgb_array")] * 2)
    with pytest.raises(TypeError, match="AsyncDQN: AsyncRollouts needs an on-policy algorithm"):
        type("AsyncDQN", (AsyncRollouts, DQN), {})("MlpPolicy", venv)
    with pytest.raises(TypeError, match="Late: name AsyncRollouts before the algorithm"):
        type("Late", (PPO, AsyncRollouts), {})
    for algorithm in (RecurrentPPO, OwnLoop, type("Below", (OwnLoop,), {})):
        owner = RecurrentPPO if algorithm is RecurrentPPO else OwnLoop
        text = f"Async: {owner.__name__} defines its own collect_rollouts"
        with pytest.raises(TypeError, match=text):
            type("Async", (AsyncRollouts, algorithm), {})("MlpPolicy", venv, **ON_POLICY)
    for algorithm in (A2C, TRPO, MaskablePPO, type("Inherits", (PPO,), {})):
        assert type("Async", (AsyncRollouts, algorithm), {})("MlpPolicy", venv)
    with pytest.raises(ValueError, match="need a VecEnv of envpool_py.sb3, got .*make_vec_env"):
        AsyncPPO("MlpPolicy", sb3.DummyVecEnv([WalkEnv] * 2))
    with pytest.raises(ValueError, match="VecVideoRecorder .* record the videos of an evaluation"):
        AsyncPPO("MlpPolicy", own.VecVideoRecorder(venv, str(tmp_path), lambda _: False))
    with pytest.raises(ValueError, match="wait_num"):
        AsyncPPO("MlpPolicy", venv, wait_num=3)
    make = functools.partial(AsyncPPO, "MlpPolicy", venv)
    assert not [*doors.check_mistakes("AsyncRollouts", make)]
    with pytest.raises(ValueError, match="does not support action masking"):
        AsyncMaskablePPO("MlpPolicy", venv, **ON_POLICY).learn(64)


class Noise(BaseCallback):
    """Finds the noise matrix of each env from the actions of a rollout."""

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        buffer, policy = self.locals["rollout_buffer"], self.model.policy
        self.matrices = []
        for env in range(4):
            with torch.no_grad():
                obs = policy.obs_to_tensor(buffer.observations[:, env])[0]
                latent = policy.mlp_extractor.forward_actor(policy.extract_features(obs))
                noise = torch.as_tensor(buffer.actions[:, env]) - policy.action_net(latent)
            matrix = torch.linalg.lstsq(latent, noise, driver="gelsd").solution
            assert torch.allclose(latent @ matrix, noise, atol=1e-3), "several matrices"
            self.matrices.append(latent @ matrix)


def test_each_env_has_its_own_noise_in_batches_of_one_row():
    noise = Noise()
    net = {"net_arch": [8]}
    options = {**ON_POLICY, "use_sde": True, "policy_kwargs": net, "wait_num": 1}
    model = AsyncPPO("MlpPolicy", own.DummyVecEnv([BOX] * 4), **options)
    model.learn(128, callback=noise)
    for one, other in itertools.combinations(noise.matrices, 2):
        assert not torch.allclose(one, other, atol=1e-3)
