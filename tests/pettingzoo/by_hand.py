"""Raw PettingZoo envs stepped by hand: the rows that the pools must give."""

import collections

import numpy as np

from envpool_py.env.spaces import map_tree
from tests.support.reference import alike as same

Row = collections.namedtuple("Row", "obs rewards terminated truncated info")  # noqa: PYI024
"""What a batch holds of one env; the info has no None."""

MODES = (None, "next_step", "same_step")


class ByHand:
    """One raw env. The subclasses `begin` an episode, and `move`.

    ``autoreset`` is the pool's mode, ``acts`` the actions to draw from, if not all that are legal;
    ``seeds`` gives the seed of each episode, if the pool has a schedule; ``skip``: dead steps are
    made within the step before.
    """

    def __init__(self, env, autoreset=None, acts=None, seeds=None, *, skip=False):
        self.env, self.autoreset, self.acts = env, autoreset, acts
        self.seeds, self.skip = seeds, skip
        self.agents = list(env.possible_agents)
        self.episodes = 0

    @property
    def over(self):
        return not self.env.agents

    def reset(self, seed=None):
        self.terminated, self.truncated = (dict.fromkeys(self.agents, False) for _ in range(2))
        row = self.begin(self.seeds(self.episodes) if self.seeds else seed)
        self.episodes += 1
        row.info["is_reset"] = True
        return row

    def step(self, actions):
        if self.over and self.autoreset == "next_step":
            return self.reset()
        row = self.move(actions)
        if self.over and self.autoreset == "same_step":
            first = self.reset()
            return row._replace(obs=first.obs, info=self.joined(row, first.info))
        return row

    def note(self, terminated, truncated):
        for agent in self.agents:
            self.terminated[agent] |= bool(terminated.get(agent, False))
            self.truncated[agent] |= bool(truncated.get(agent, False))

    def draw(self, agent, mask, rng):
        """Draw a legal action."""
        if self.acts:
            return int(rng.choice(self.acts))
        if mask is not None:
            return int(rng.choice(np.flatnonzero(mask)))
        space = self.env.action_space(agent)
        return rng.uniform(space.low, space.high, space.shape).astype(space.dtype)


class AECByHand(ByHand):
    """A turn-based env."""

    def begin(self, seed):
        self.env.reset(seed=seed)
        return self.look({})

    def move(self, action):
        self.env.step(action)
        rewards, final = dict(self.env.rewards), {}
        first = row = self.look(rewards)
        while self.skip and self.dead:
            final[row.obs["agent_id"]] = row.info["last_reward"]
            self.env.step(None)
            rewards |= {a: rewards[a] + r for a, r in self.env.rewards.items()}
            row = self.look(rewards)
        if final:
            row = first._replace(rewards=row.rewards) if self.over else row
            row.info.update(final_rewards=final, **self.facts())
        return row

    def joined(self, last, first):
        """Join the info of an episode's last row and that of the next one's first."""
        return told({**first, "final_obs": last.obs, "final_info": last.info, "is_reset": None})

    @property
    def dead(self):
        env, agent = self.env, self.env.agent_selection
        return not self.over and bool(env.terminations[agent] or env.truncations[agent])

    def facts(self):
        flags = [np.array(list(own.values())) for own in (self.terminated, self.truncated)]
        return {"env_done": self.over, "terminations": flags[0], "truncations": flags[1]}

    def look(self, rewards):
        env = self.env
        self.note(env.terminations, env.truncations)
        vector = np.array([float(rewards.get(agent, 0)) for agent in self.agents])
        if self.over:
            info = {**self.seen.info, "last_reward": 0.0, **self.facts()}
            return self.seen._replace(rewards=vector, info=info)
        obs, last, terminated, truncated, info = env.last()
        mask = info.get("action_mask")
        if isinstance(obs, dict) and "action_mask" in obs:
            mask, obs = obs["action_mask"], obs["observation"]
        space = env.action_space(env.agent_selection)
        if mask is None and hasattr(space, "n"):
            mask = np.ones(space.n)
        obs = {"agent_id": env.agent_selection, "obs": copied(obs)}
        if mask is not None:
            obs["mask"] = np.asarray(mask).astype(bool)
        info = {**info, "last_reward": float(last), **self.facts()}
        self.seen = Row(obs, vector, bool(terminated), bool(truncated), info)
        return self.seen

    def choose(self, row, rng):
        """Draw an action of the agent of this row; None if it is dead."""
        if self.over or self.dead:
            return None
        return self.draw(row.obs["agent_id"], row.obs.get("mask"), rng)


class ParallelByHand(ByHand):
    """A parallel env."""

    def begin(self, seed):
        obs, infos = self.env.reset(seed=seed)
        return self.row(obs, {}, infos, ())

    @property
    def alive(self):
        """The live agents; some envs list, and return values for, their dead, too."""
        return [a for a in self.env.agents if not (self.terminated[a] or self.truncated[a])]

    @property
    def over(self):
        return not self.alive

    def move(self, actions):
        acted = self.alive
        assert set(actions) == set(acted)
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        self.note(terminated, truncated)
        return self.row(obs, rewards, infos, acted)

    def joined(self, last, first):
        ended = {key: last.info[key] for key in ("valid", "env_done", "is_reset")}
        return {**first, **ended, "final_obs": last.obs, "final_infos": last.info["agent_infos"]}

    def row(self, obs, rewards, infos, acted):
        alive, there = self.alive, {*self.alive, *acted}
        seen, masks, kept = {}, {}, {}
        for agent in self.agents:
            space, own = self.env.observation_space(agent), self.env.action_space(agent)
            info = dict(infos.get(agent, {}))
            seen[agent] = copied(obs[agent]) if agent in there else zeros(space)
            if "action_mask" in getattr(space, "spaces", ()):
                masks[agent] = seen[agent]["action_mask"] != 0
            elif hasattr(own, "n"):
                mask = info.pop("action_mask", np.full(own.n, agent in alive))
                masks[agent] = np.asarray(mask) != 0
            if info:
                kept[agent] = info
        info = {
            "alive": {agent: agent in alive for agent in self.agents},
            "valid": {agent: agent in acted for agent in self.agents},
            "env_done": self.over,
            "is_reset": False,
            "agent_infos": kept,
            "action_mask": masks or None,
        }
        paid = {a: float(rewards.get(a, 0) if a in there else 0) for a in self.agents}
        return Row(seen, paid, dict(self.terminated), dict(self.truncated), told(info))

    def choose(self, row, rng):
        """Draw an action for each live agent."""
        masks = row.info.get("action_mask", {})
        return {agent: self.draw(agent, masks.get(agent), rng) for agent in self.alive}


def drive(pool, hands, num_steps, *, seed=7):
    """Reset all envs and step each so often; compare every row; return the batches.

    What was returned has to be the same after the next step.
    """
    rngs = [np.random.default_rng(i) for i in range(len(hands))]
    pool.send_reset(seed=seed)
    rows = [hand.reset(None if seed is None else seed + i) for i, hand in enumerate(hands)]
    left, batches, expected = [num_steps] * len(hands), [], []
    while pool.waiting_id:
        batches.append(pool.recv())
        free = pool.batch_ids.tolist()
        expected = [*expected[-1:], [rows[i] for i in free]]
        for batch, own in zip(batches[-2:], expected, strict=True):
            for k, row in enumerate(own):
                assert same(row_of(batch, k), row), (row_of(batch, k), row)
        over = [i for i in free if hands[i].over and hands[i].autoreset is None]
        ids = [i for i in free if i not in over and left[i]]
        actions = [hands[i].choose(rows[i], rngs[i]) for i in ids]
        for i, action in zip(ids, actions, strict=True):
            left[i] -= 1
            rows[i] = hands[i].step(action)
        for i in over:
            rows[i] = hands[i].reset()
        pool.send_reset(over)
        if ids:
            pool.send(actions, ids)
    return batches


def row_of(batch, k):
    *values, info = pick(batch, k)
    only_of_pool = dict.fromkeys(("env_id", "env_error"))
    return Row(*values, told({**info, **only_of_pool}))


def told(info):
    """Return the info without what is None."""
    return {key: part for key, part in info.items() if part is not None}


def copied(obs):
    return map_tree(lambda part: np.array(part)[()], obs)  # a scalar has no dimension


def zeros(space):
    """Return what an absent agent observes."""

    def zero(part):
        return None if part.shape is None else np.zeros(part.shape, part.dtype)

    return map_tree(zero, getattr(space, "spaces", space))


def pick(tree, k):
    return map_tree(lambda part: part[k], tree)
