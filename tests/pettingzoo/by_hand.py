"""Raw PettingZoo envs stepped by hand: what the pools must give."""

from __future__ import annotations

from typing import Any

import numpy as np

from envpool_py.spaces import map_tree
from tests.support.reference import alike as same


class AECByHand:
    """One raw AEC env, and the row that it should have."""

    def __init__(self, env: Any, *, skip: bool = False, acts: Any = None) -> None:
        self.env, self.skip, self.acts = env, skip, acts
        self.over = True

    def reset(self, seed: int | None) -> dict[str, Any]:
        self.env.reset(seed=seed)
        agents = self.env.possible_agents
        self.terminations = dict.fromkeys(agents, False)
        self.truncations = dict.fromkeys(agents, False)
        self.over = False
        return self.look({})

    def step(self, action: Any) -> dict[str, Any]:
        self.env.step(action)
        rewards = dict(self.env.rewards)
        row = self.look(rewards)
        if self.skip and row["dead"]:
            final, first = {}, row
            while self.env.agents and row["dead"]:
                final[row["agent"]] = row["info"]["last_reward"]
                self.env.step(None)
                row = self.look(rewards)
            row = {**(first if self.over else row), "over": self.over}
            row["info"] = {**row["info"], "final_rewards": final, **self.facts()}
        return row

    def facts(self) -> dict[str, Any]:
        return {
            "env_done": self.over,
            "terminations": np.array(list(self.terminations.values())),
            "truncations": np.array(list(self.truncations.values())),
        }

    def look(self, rewards: dict[str, float]) -> dict[str, Any]:
        env = self.env
        for agent in env.agents:
            self.terminations[agent] |= bool(env.terminations[agent])
            self.truncations[agent] |= bool(env.truncations[agent])
        vector = np.array([float(rewards.get(a, 0)) for a in env.possible_agents])
        if not env.agents:
            self.over = True
            info = {**self.seen["info"], "last_reward": 0.0, **self.facts()}
            return {**self.seen, "rewards": vector, "info": info, "over": True}
        obs, last, terminated, truncated, info = env.last()
        mask = info.get("action_mask")
        if isinstance(obs, dict) and "action_mask" in obs:
            mask = obs["action_mask"]
            obs = obs["observation"]
        space = env.action_space(env.agent_selection)
        if mask is None and hasattr(space, "n"):
            mask = np.ones(space.n)
        self.seen = {
            "agent": env.agent_selection,
            "obs": copied(obs),
            "mask": None if mask is None else np.asarray(mask).astype(bool),
            "rewards": vector,
            "terminated": bool(terminated),
            "truncated": bool(truncated),
            "dead": bool(terminated or truncated),
            "over": False,
            "info": {**info, "last_reward": float(last), **self.facts()},
        }
        return self.seen

    def choose(self, row: dict[str, Any], rng: np.random.Generator) -> Any:
        """A legal action for the agent of this row."""
        if row["dead"]:
            return None
        if self.acts:
            return int(rng.choice(self.acts))
        space = self.env.action_space(row["agent"])
        if row["mask"] is not None:
            return int(rng.choice(np.flatnonzero(row["mask"])))
        return rng.uniform(space.low, space.high).astype(space.dtype)


def check_row(row: dict, obs: dict, info: dict, stepped: Any = None, **more: Any) -> None:
    """Assert that a row is that of ``AECByHand``; ``stepped`` are reward and flags."""
    assert obs["agent_id"] == row["agent"]
    assert same(obs["obs"], row["obs"])
    assert ("mask" in obs) == (row["mask"] is not None)
    assert row["mask"] is None or same(obs["mask"], row["mask"])
    assert same(info, {**row["info"], **more})
    if stepped is not None:
        assert same(stepped[0], row["rewards"])
        assert (stepped[1], stepped[2]) == (row["terminated"], row["truncated"])


class ParallelByHand:
    """One raw parallel env, and the row that it should have."""

    def __init__(self, env: Any, autoreset: str | None = None, *, acts: Any = None) -> None:
        self.env, self.autoreset, self.acts = env, autoreset, acts
        self.agents = list(env.possible_agents)

    def reset(self, seed: int | None = None) -> dict[str, Any]:
        obs, infos = self.env.reset(seed=seed)
        self.obs = {a: copied(o) for a, o in obs.items()}
        self.terminated = dict.fromkeys(self.agents, False)
        self.truncated = dict.fromkeys(self.agents, False)
        self.over = False
        return self.row({}, set(), infos)

    def step(self, actions: dict[str, Any]) -> dict[str, Any]:
        if self.over and self.autoreset == "next_step":
            return {**self.reset(), "is_reset": True}
        acted = set(self.env.agents)
        assert set(actions) == acted
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        self.obs = {a: copied(o) for a, o in obs.items()}
        for agent in self.agents:
            self.terminated[agent] |= bool(terminated.get(agent, False))
            self.truncated[agent] |= bool(truncated.get(agent, False))
        self.over = not self.env.agents
        row = self.row(rewards, acted, infos)
        if self.over and self.autoreset == "same_step":
            first = self.reset()
            last = {"final_obs": row["obs"], "final_infos": row["infos"]}
            new = {key: first[key] for key in ("obs", "alive", "mask", "infos")}
            row = {**row, **new, **last}
        return row

    def row(self, rewards: dict, acted: set, infos: dict) -> dict[str, Any]:
        env = self.env
        masks, kept = {}, {}
        for agent in self.agents:
            space = env.action_space(agent)
            own = env.observation_space(agent)
            alive = agent in env.agents
            info = dict(infos.get(agent, {}))
            if hasattr(own, "spaces") and "action_mask" in own.spaces:
                seen = self.obs.get(agent)
                shape = own["action_mask"].shape
                masks[agent] = np.zeros(shape, bool) if seen is None else seen["action_mask"] != 0
            elif hasattr(space, "n"):
                masks[agent] = np.full(space.n, alive)
                given = info.pop("action_mask", None)
                if agent in self.obs and given is not None:
                    masks[agent] = np.asarray(given) != 0
            if info:
                kept[agent] = info
        return {
            "obs": {
                a: self.obs[a] if a in self.obs else zeros(env.observation_space(a))
                for a in self.agents
            },
            "rewards": {a: float(rewards.get(a, 0)) for a in self.agents},
            "terminated": dict(self.terminated),
            "truncated": dict(self.truncated),
            "alive": {a: a in env.agents for a in self.agents},
            "valid": {a: a in acted for a in self.agents},
            "env_done": self.over,
            "is_reset": False,
            "mask": masks,
            "infos": kept,
        }

    def choose(self, row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """A legal action for each live agent."""
        actions = {}
        for agent in self.env.agents:
            space = self.env.action_space(agent)
            if self.acts:
                actions[agent] = int(rng.choice(self.acts))
            elif agent in row["mask"]:
                actions[agent] = int(rng.choice(np.flatnonzero(row["mask"][agent])))
            else:
                actions[agent] = rng.uniform(space.low, space.high, space.shape).astype(space.dtype)
        return actions


def copied(obs: Any) -> Any:
    return map_tree(lambda part: np.array(part)[()], obs)  # a scalar has no dimension


def zeros(space: Any) -> Any:
    parts = getattr(space, "spaces", space)
    return map_tree(lambda part: np.zeros(part.shape, part.dtype), parts)


def row_of(batch: Any, k: int) -> dict[str, Any]:
    """Row ``k`` of what a ParallelVectorEnv returned, in the form of ``ParallelByHand``."""
    obs, rewards, terminated, truncated, info = batch
    row = {
        "obs": {a: pick(o, k) for a, o in obs.items()},
        "rewards": {a: r[k] for a, r in rewards.items()},
        "terminated": {a: bool(f[k]) for a, f in terminated.items()},
        "truncated": {a: bool(f[k]) for a, f in truncated.items()},
        "alive": {a: bool(f[k]) for a, f in info["alive"].items()},
        "valid": {a: bool(f[k]) for a, f in info["valid"].items()},
        "env_done": bool(info["env_done"][k]),
        "is_reset": bool(info["is_reset"][k]),
        "mask": {a: m[k] for a, m in info.get("action_mask", {}).items()},
        "infos": info["agent_infos"][k],
    }
    if info.get("final_obs") is not None and info["final_obs"][k] is not None:
        row["final_obs"] = info["final_obs"][k]
        row["final_infos"] = info["final_infos"][k]
    return row


def pick(obs: Any, k: int) -> Any:
    return map_tree(lambda part: part[k], obs)
