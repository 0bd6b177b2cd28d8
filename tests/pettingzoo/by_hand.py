"""Raw PettingZoo envs stepped by hand: what the pools must give."""

from __future__ import annotations

from typing import Any

import numpy as np

from envpool_py.spaces import map_tree
from tests.support.reference import alike as same


class AECByHand:
    """One raw AEC env, and the row that it should have."""

    autoreset = None

    def __init__(self, env: Any, *, skip: bool = False, acts: Any = None) -> None:
        self.env, self.skip, self.acts = env, skip, acts
        self.agents = list(env.possible_agents)

    @property
    def over(self) -> bool:
        return not self.env.agents

    def reset(self, seed: int | None = None) -> dict[str, Any]:
        self.env.reset(seed=seed)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        return self.look({})

    def asked_reset(self) -> dict[str, Any]:
        row = self.reset()
        return {**row, "info": {**row["info"], "is_reset": True}}

    def step(self, action: Any) -> dict[str, Any]:
        self.env.step(action)
        rewards = dict(self.env.rewards)
        row = self.look(rewards)
        if self.skip and is_dead(row):
            final, first = {}, row
            while self.env.agents and is_dead(row):
                final[row["obs"]["agent_id"]] = row["info"]["last_reward"]
                self.env.step(None)
                row = self.look(rewards)
            row = first if self.over else row
            row["info"] |= {"final_rewards": final, **self.facts()}
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
        vector = np.array([float(rewards.get(a, 0)) for a in self.agents])
        if self.over:
            info = {**self.seen["info"], "last_reward": 0.0, **self.facts()}
            return {**self.seen, "rewards": vector, "info": info}
        obs, last, terminated, truncated, info = env.last()
        mask = info.get("action_mask")
        if isinstance(obs, dict) and "action_mask" in obs:
            mask = obs["action_mask"]
            obs = obs["observation"]
        space = env.action_space(env.agent_selection)
        if mask is None and hasattr(space, "n"):
            mask = np.ones(space.n)
        given = {} if mask is None else {"mask": np.asarray(mask).astype(bool)}
        self.seen = {
            "obs": {"agent_id": env.agent_selection, "obs": copied(obs), **given},
            "rewards": vector,
            "terminated": bool(terminated),
            "truncated": bool(truncated),
            "info": {**info, "last_reward": float(last), **self.facts()},
        }
        return self.seen

    def choose(self, row: dict[str, Any], rng: np.random.Generator) -> Any:
        """A legal action for the agent of this row."""
        obs = row["obs"]
        if is_dead(row):
            return None
        return draw(self.env.action_space(obs["agent_id"]), obs.get("mask"), self.acts, rng)

    def form(self, actions: list[Any], _: int) -> list[Any]:
        """Actions as a pool takes them."""
        return actions

    def read(self, batch: Any, k: int) -> dict[str, Any]:
        """Row ``k`` of what a pool returned, in the form of ``step``."""
        obs, *stepped, info = batch
        rewards, terminated, truncated = [column[k] for column in stepped] or (
            np.zeros(len(self.agents)),
            False,
            False,
        )
        told = {key: part for key, part in info[k].items() if key != "env_id"}
        flags = {"terminated": terminated, "truncated": truncated}
        return {"obs": obs[k], "rewards": rewards, **flags, "info": told}


def is_dead(row: dict[str, Any]) -> bool:
    return bool(row["terminated"] or row["truncated"])


def draw(space: Any, mask: Any, acts: Any, rng: np.random.Generator) -> Any:
    """Draw a legal action, one of ``acts`` if these are given."""
    if acts:
        return int(rng.choice(acts))
    if mask is not None:
        return int(rng.choice(np.flatnonzero(mask)))
    return rng.uniform(space.low, space.high, space.shape).astype(space.dtype)


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

    def asked_reset(self) -> dict[str, Any]:
        return {**self.reset(), "is_reset": True}

    def step(self, actions: dict[str, Any]) -> dict[str, Any]:
        if self.over and self.autoreset == "next_step":
            return self.asked_reset()
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
        own = {agent: self.env.action_space(agent) for agent in self.env.agents}
        return {a: draw(own[a], row["mask"].get(a), self.acts, rng) for a in own}

    def form(self, actions: list[dict[str, Any]], t: int) -> Any:
        """Actions as a ``ParallelVectorEnv`` takes them, in both forms in turn."""
        if t % 2:
            return actions
        agents = [agent for agent in self.agents if any(agent in row for row in actions)]
        return {agent: [row.get(agent) for row in actions] for agent in agents}

    def read(self, batch: Any, k: int) -> dict[str, Any]:
        """Row ``k`` of what a ``ParallelVectorEnv`` returned, in the form of ``step``."""
        obs, *stepped, info = batch
        rewards, terminated, truncated = stepped or [dict.fromkeys(self.agents, [0.0] * 9)] * 3
        flags = {
            "terminated": terminated,
            "truncated": truncated,
            "alive": info["alive"],
            "valid": info["valid"],
        }
        row = {
            "obs": {a: pick(o, k) for a, o in obs.items()},
            "rewards": {a: r[k] for a, r in rewards.items()},
            **{name: {a: bool(f[k]) for a, f in own.items()} for name, own in flags.items()},
            "env_done": bool(info["env_done"][k]),
            "is_reset": bool(info["is_reset"][k]),
            "mask": {a: m[k] for a, m in info.get("action_mask", {}).items()},
            "infos": info["agent_infos"][k],
        }
        if info.get("final_obs") is not None and info["final_obs"][k] is not None:
            row["final_obs"] = info["final_obs"][k]
            row["final_infos"] = info["final_infos"][k]
        return row


def drive(pool: Any, hands: list[Any], num_steps: int) -> int:
    """Step all envs so often, and compare every row; return how many episodes ended.

    What was returned has to be the same after the next step.
    """
    rngs = [np.random.default_rng(i) for i in range(len(hands))]
    rows = [hand.reset(7 + i) for i, hand in enumerate(hands)]
    batch = pool.reset(seed=7)
    returned = [(hand, k, rows[k]) for k, hand in enumerate(hands)]
    left, free, ended = [num_steps] * len(hands), list(range(len(hands))), 0
    while any(left) or pool.waiting_id:
        over = [i for i in free if hands[i].over and hands[i].autoreset is None]
        pool.send_reset(over)
        for i in over:
            rows[i] = hands[i].asked_reset()
        ids = [i for i in free if i not in over and left[i]]
        actions = [hands[i].choose(rows[i], rngs[i]) for i in ids]
        for i, action in zip(ids, actions, strict=True):
            left[i] -= 1
            rows[i] = hands[i].step(action)
            ended += rows[i].get("env_done", hands[i].over)
        if ids:
            pool.send(hands[0].form(actions, left[ids[0]]), ids)
        for hand, k, row in returned:
            assert same(hand.read(batch, k), row), (hand.read(batch, k), row)
        batch = pool.recv()
        free = pool.batch_ids.tolist()
        returned = [(hands[i], k, rows[i]) for k, i in enumerate(free)]
        for hand, k, row in returned:
            assert same(hand.read(batch, k), row), (hand.read(batch, k), row)
    return ended


def copied(obs: Any) -> Any:
    return map_tree(lambda part: np.array(part)[()], obs)  # a scalar has no dimension


def zeros(space: Any) -> Any:
    parts = getattr(space, "spaces", space)
    return map_tree(lambda part: np.zeros(part.shape, part.dtype), parts)


def pick(obs: Any, k: int) -> Any:
    return map_tree(lambda part: part[k], obs)
