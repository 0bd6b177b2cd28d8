"""``envpool-py collect``: whole episodes of one environment, collected over a pool."""

from __future__ import annotations

import argparse
import os
import platform
import secrets
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import envpool_py
from envpool_py import extras
from envpool_py.cli import arguments
from envpool_py.cli.arguments import INTERRUPTED, add_shared, at_least, complain, counted, exact
from envpool_py.cli.naming import UsageError, add_env, env_fn_of
from envpool_py.cli.progress import showing
from envpool_py.cli.tables import figures, separated, show_table
from envpool_py.collector import AsyncCollector, Episode, EpisodeWriter, Policy, RandomPolicy
from envpool_py.collector.policy import check_pool_and_policy
from envpool_py.env.executor import Recreated
from envpool_py.env.failures import describe, description_of, in_one_line, traceback_of
from envpool_py.errors import EnvError
from envpool_py.pool.base import BaseVectorEnv

HELP = "collect whole episodes of an env, asynchronously"
EPILOG = """\
With one seed and number of envs the same episodes are collected, bit for bit,
with every backend, number of processes, wait-num and timeout, because each env
does a fixed share of the work. A custom policy should depend only on each env's
observations.

Ctrl-C ends it: whole episodes are kept, and the exit status is 130.

examples:
  envpool-py collect CartPole-v1 --steps 50000 --seed 0 --out cartpole
  envpool-py collect mine.py:MyEnv --episodes 100 --record run.record
"""

#: How a collection ended, by the exit status.
_ENDED = {1: "ended by an error", INTERRUPTED: "interrupted"}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_env(parser, "; or PettingZoo's name")
    add = parser.add_argument
    limit = parser.add_mutually_exclusive_group(required=True)
    text = "collect whole episodes, N steps or more in all; an env starts none after its share of N"
    limit.add_argument("--steps", type=at_least(1), metavar="N", help=text)
    text = "collect exactly N episodes"
    limit.add_argument("--episodes", type=at_least(1), metavar="N", help=text)
    add_shared(parser, "--num-envs", default=8)
    text = "rows that a batch waits for; default: half of the envs"
    add_shared(parser, "--wait-num", help=text)
    text = "longest wait for K rows"
    add("--timeout", type=arguments.seconds, metavar="SECONDS", help=text)
    add_shared(parser, "--backend", "--num-processes", "--context")
    text = "of the Ray cluster; auto: that of this machine; default: RAY_ADDRESS, else a new one"
    add("--address", help=text)
    text = "env i is seeded with S + i; default: drawn"
    add("--seed", type=at_least(0), metavar="S", help=text)
    text = "policy(obs, env_ids) -> actions; a class is called with (pool, seed) to make one"
    add_shared(parser, "--policy", help=f"{text}; default: random actions")
    text = "a new folder for the episodes"
    add("--out", type=arguments.episodes_folder, metavar="FOLDER", help=text)
    text = "a new file for envpool-py replay: all requests, and checksums of the results"
    add("--record", metavar="FILE", help=text)
    add_shared(parser, "--on-error")
    text = "time limit of a step or reset; after that the env's process is killed"
    add("--step-timeout", type=arguments.seconds, metavar="SECONDS", help=text)
    text = "write a video of each episode of env 0; the render_mode is rgb_array"
    add("--video", metavar="DIR", help=text)


def _show(facts: dict[str, Any]) -> None:
    failed = facts["failed"]
    shown = {
        **{name: exact(facts[name]) for name in ("episodes", "steps")},
        **{name: figures(facts[f"{name}s"]) for name in ("return", "length")},
        "seconds": f"{facts['seconds']:.2f}",
        "steps/s": separated(facts["steps_per_second"]),
        "rows per batch": f"{facts['rows_per_batch']:.1f}",
        "seed": str(facts["seed"]),
        "restarts": exact(facts["restarts"]) if facts["restarts"] else None,
        "failed": f"{exact(failed)}; return and length include them" if failed else None,
        "file": facts["file"],
    }
    show_table((name, value) for name, value in shown.items() if value is not None)


def run(args: argparse.Namespace) -> int:
    _complete(args)
    facts: dict[str, Any] = {"env": args.env, "seed": args.seed}
    writer, status = None, 0
    try:
        with _pool(args) as pool:
            policy = _policy(args, pool)
            writer = _writer(args, pool)
            collector = AsyncCollector(pool, policy, seed=args.seed)
            status = _collect(args, collector, writer, facts)
            if writer is not None:
                writer.metadata["complete"] = status == 0
                try:
                    writer.close()
                except OSError as error:
                    complain(f"{args.out}: {describe(error)}")
                    status = status or 1
    except KeyboardInterrupt:  # maybe the second one, while the file is written or envs end
        status = INTERRUPTED
    if status:
        kept = f"kept {writer.num_episodes} whole episodes in {args.out}" if writer else "no --out"
        complain(f"{_ENDED[status]}; {kept}")
    if "steps" in facts:
        facts |= {"file": args.out if writer else None, "complete": status == 0}
        arguments.report(args, facts, lambda: _show(facts))
    return status


def _complete(args: argparse.Namespace) -> None:
    """Replace options that are not given by their defaults; check what the parser can't check."""
    if args.wait_num is None:
        args.wait_num = max(1, args.num_envs // 2)
    if args.seed is None:
        args.seed = secrets.randbits(31)
    if args.seed + args.num_envs > 1 << 63:
        raise UsageError(f"--seed: must be below 2**63 - {args.num_envs}, got {args.seed}")
    if args.backend == "ray":
        _connect_to_ray(args.address)
    elif args.address is not None:
        raise UsageError("--address: only the ray backend has a cluster")


def _collect(
    args: argparse.Namespace,
    collector: AsyncCollector,
    writer: EpisodeWriter | None,
    facts: dict[str, Any],
) -> int:
    """Collect and write; add the summary to ``facts`` in any case; return the exit status."""
    returns: list[float] = []  # the parts of a vector reward are added up
    lengths: list[int] = []
    failed = 0
    started = time.perf_counter()

    def progress() -> tuple[float, str]:
        steps, episodes = collector.num_steps, len(returns)
        rate = steps / max(time.perf_counter() - started, 1e-9)
        text = f"{counted(steps, 'step')}, {separated(rate)} steps/s"
        text += f", {counted(episodes, 'episode')}"
        if returns:
            text += f", return {np.mean(returns[-100:]):.4g}"  # of the last episodes
        return steps if args.episodes is None else episodes, text

    def keep(episodes: Iterable[Episode]) -> bool:
        nonlocal failed
        for episode in episodes:
            if writer is not None:
                try:
                    writer.write(episode)
                except (OSError, TypeError, ValueError) as error:  # the disk may be full
                    complain(f"{args.out}: {describe(error)}")
                    return False
            returns.append(float(np.sum(episode.total_reward)))
            lengths.append(len(episode))
            failed += episode.failed
        return True

    try:
        with showing(args.episodes or args.steps, progress):
            if not keep(collector.episodes(args.episodes, args.steps)):
                return 1
    except KeyboardInterrupt as interrupt:
        return INTERRUPTED if keep(getattr(interrupt, "finished", ())) else 1
    except EnvError as error:
        complain(error.text)
        if args.on_error == "raise":
            complain("--on-error restart goes on with a new env")
        return 1
    except Exception as error:  # noqa: BLE001 - a policy's own error, say
        texts = description_of(error), traceback_of(error, error.__traceback__)
        complain("\n\n".join(filter(None, texts)))
        return 1
    finally:
        seconds = time.perf_counter() - started
        facts |= {  # at once: a second Ctrl-C must not leave a part
            "episodes": len(returns),
            "steps": sum(lengths),
            "returns": returns,
            "lengths": lengths,
            "seconds": seconds,
            "steps_per_second": collector.num_steps / max(seconds, 1e-9),
            "rows_per_batch": collector.num_rows / max(collector.num_batches, 1),
            "restarts": int(collector.pool.restarts.sum()),
            "failed": failed,
        }
    return 0


def _connect_to_ray(address: str | None) -> None:
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError(f"--backend ray: ray is missing; {extras.hint('ray')}") from None
    if not ray.is_initialized():
        try:
            ray.init(address, logging_level="ERROR", log_to_driver=False)
        except (ConnectionError, ValueError) as error:
            raise UsageError("--address: " + str(error).partition("\n")[0]) from None


def _pool(args: argparse.Namespace) -> BaseVectorEnv:
    options: dict[str, Any] = {"timeout": args.timeout, "on_error": args.on_error}
    if args.step_timeout is not None:
        if args.backend == "dummy":
            raise UsageError("--step-timeout: the dummy backend has no process that can be killed")
        options["step_timeout"] = args.step_timeout
    more = {} if args.video is None else {"render_mode": "rgb_array"}
    env_fn = env_fn_of(args, pettingzoo=True, **more)
    if args.video is not None:
        filmed = partial(_filmed, env_fn, os.path.realpath(args.video))
        options["first"] = update_wrapper(filmed, env_fn)  # with the name for the record
    try:
        return arguments.pool_of(args, env_fn, columns=True, record=args.record, **options)
    except EnvError:  # which may be an OSError as well
        raise
    except OSError as error:
        raise UsageError("--record: " + str(error).removeprefix("record: ")) from None


def _filmed(env_fn: Callable[[], Any], folder: str) -> Any:
    env, kept = env_fn(), [*Path(folder).glob("*.mp4")] if Recreated.is_being_made() else []
    with warnings.catch_warnings():
        if kept:  # of the env before it, which it does not overwrite
            warnings.simplefilter("ignore")
        filmed = gym.wrappers.RecordVideo(env, folder, episode_trigger=lambda _: True)
    filmed.episode_id += len(kept)
    return filmed


def _policy(args: argparse.Namespace, pool: BaseVectorEnv) -> Policy:
    policy: Any = RandomPolicy if args.policy is None else args.policy.value
    try:
        made = policy(pool, args.seed) if isinstance(policy, type) else policy
    except Exception as error:  # noqa: BLE001 - the user's class may raise anything
        whose = "" if args.policy is None else f"--policy: {args.policy.name} raised "
        raise UsageError(whose + in_one_line(error)) from None
    try:
        check_pool_and_policy(pool, made)
    except TypeError as error:
        raise UsageError(f"--policy: {error}") from None
    return made  # type: ignore[no-any-return]


def _writer(args: argparse.Namespace, pool: BaseVectorEnv) -> EpisodeWriter | None:
    """The writer of ``--out``; its metadata are everything that the episodes depend on."""
    if args.out is None:
        return None
    packages = {"envpool-py": envpool_py, "gymnasium": gym, "numpy": np}
    versions = {name: package.__version__ for name, package in packages.items()}
    metadata = {
        "env_id": args.env,
        "env_kwargs": {key: repr(value) for key, value in args.env_kwarg},
        "wrappers": [wrapper.name for wrapper in args.wrapper],
        "policy": args.policy.name if args.policy else "random",
        **{name: getattr(args, name) for name in ("seed", "num_envs", "steps", "episodes")},
        "versions": {"python": platform.python_version(), **versions},
    }
    try:
        env_spaces = pool.single_observation_space, pool.single_action_space
        return EpisodeWriter(args.out, *env_spaces, metadata)
    except (OSError, TypeError, ValueError) as error:
        raise UsageError(f"--out: {error}") from None
