"""``envpool-py collect``: whole episodes of one environment, collected over a pool."""

from __future__ import annotations

import argparse
import platform
import secrets
import shutil
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from envpool_py import spaces
from envpool_py.cli.arguments import (
    INTERRUPTED,
    UsageError,
    add_backend_options,
    add_num_envs,
    add_wait_num,
    complain,
    first_line,
    installed_version,
    integer,
    pool_of,
    seconds,
    writable,
)
from envpool_py.cli.env_argument import add_env, env_fn_of, is_pettingzoo
from envpool_py.cli.importing import imported
from envpool_py.cli.progress import showing
from envpool_py.cli.summary import Summary
from envpool_py.collector import AsyncCollector, EpisodeWriter, Policy, RandomPolicy, space_json
from envpool_py.errors import EnvError, describe
from envpool_py.pool import BaseVectorEnv
from envpool_py.wrappers import RecordVideo

if TYPE_CHECKING:
    from collections.abc import Callable

HELP = "collect whole episodes of an env, asynchronously"
EPILOG = """\
With one seed and number of envs the same episodes are collected, bit for bit, with every backend,
number of processes, wait-num and timeout, because each env does a fixed share of the work. A custom
policy should depend only on each env's observations. With --no-balanced an env that is free takes
the next episode: this is faster if some envs are slow, and the episodes then depend on timing.

Ctrl-C ends it: whole episodes are kept, and the exit status is 130.

examples:
  envpool-py collect CartPole-v1 --steps 50000 --seed 0 --out cartpole.npz
  envpool-py collect mine.py:MyEnv --env-kwarg size=3 --episodes 100 --record run.record
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_env(parser, "; or PettingZoo's name")
    limit = parser.add_mutually_exclusive_group(required=True)
    limit.add_argument(
        "--steps",
        type=integer(1),
        metavar="N",
        help="collect whole episodes with at least N steps: an env starts no episode after its"
        " share of the N steps",
    )
    limit.add_argument(
        "--episodes", type=integer(1), metavar="N", help="collect exactly N episodes"
    )
    add_num_envs(parser, 8)
    add_wait_num(parser, "half of the envs")
    parser.add_argument(
        "--timeout", type=seconds, metavar="SECONDS", help="longest wait for K rows"
    )
    add_backend_options(parser)
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help="address of the Ray cluster for ray.init; auto: the cluster of this machine; default:"
        " RAY_ADDRESS, else a new cluster on this machine",
    )
    parser.add_argument(
        "--balanced",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether each env does a fixed share, so that results do not depend on timing;"
        " default: yes",
    )
    parser.add_argument(
        "--seed", type=integer(0), metavar="S", help="env i is seeded with S + i; default: drawn"
    )
    parser.add_argument(
        "--policy",
        type=imported,
        metavar="MODULE:CALLABLE",
        help="policy(obs, env_ids) -> actions; a class is called with (pool, seed) to make one;"
        " default: random actions",
    )
    parser.add_argument(
        "--out", type=writable, metavar="FILE.npz", help="where to write the episodes"
    )
    parser.add_argument(
        "--force", action="store_true", help="replace the file of --out if there is one"
    )
    parser.add_argument(
        "--compress",
        action=argparse.BooleanOptionalAction,
        help="whether to compress the file; default: only if observations are images",
    )
    parser.add_argument(
        "--record",
        metavar="FILE",
        help="a new file for envpool-py replay: all requests, and checksums of the results",
    )
    parser.add_argument(
        "--on-error",
        choices=("raise", "restart", "replay"),
        default="raise",
        help="restart: an env that fails is recreated, and its episode is truncated; replay: its"
        " episode is repeated up to the failure as well; default: %(default)s",
    )
    parser.add_argument(
        "--step-timeout",
        type=seconds,
        metavar="SECONDS",
        help="time limit of a step or reset; after that the env's process is killed",
    )
    parser.add_argument(
        "--video",
        metavar="DIR",
        help="write a video of each episode of env 0, with a tile for every env; envs get"
        ' render_mode="rgb_array"',
    )


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status."""
    if args.wait_num is None:
        args.wait_num = max(1, args.num_envs // 2)
    if args.seed is None:
        args.seed = secrets.randbits(31)
    if args.seed + args.num_envs > 1 << 63:
        raise UsageError(f"--seed: must be below 2**63 - {args.num_envs}, got {args.seed}")
    for path in [] if args.out is None else [args.out, f"{args.out}.partial"]:
        if Path(path).exists() and not args.force:
            raise UsageError(f"--out: {path} exists; --force replaces it")
    summary: Summary | None = None
    writer: EpisodeWriter | None = None
    status = 0
    restarts: list[int] = []  # the ids of the envs
    written: int | None = None  # episodes; None: no file was begun
    if args.backend == "ray":
        _connect_to_ray(args.address)
    elif args.address is not None:
        raise UsageError("--address: only the ray backend has a cluster")
    try:
        with _pool(args, restarts) as pool:
            policy = _policy(args, pool)
            writer = _writer(args, pool)
            summary = Summary(AsyncCollector(pool, policy, seed=args.seed))
            status = _collect(args, writer, summary)
            status, written = _put_in_place(writer, args.out, status)
    except KeyboardInterrupt:
        if written is None:
            complain(f"interrupted; {_kept(writer, f'{args.out}.partial')}")
        # Else it is the second time, so as not to wait for the envs' end.
        status = INTERRUPTED
    if summary is not None:
        summary.show(args.seed, args.out if written else None, len(restarts))
    return status


def _collect(args: argparse.Namespace, writer: EpisodeWriter | None, summary: Summary) -> int:
    """Collect and write until the limit, an interrupt or an error; returns the exit status."""
    collector = summary.collector

    def progress() -> tuple[float, str]:
        done = collector.num_steps if args.episodes is None else len(summary.returns)
        return done, summary.line()

    try:
        with showing(args.episodes or args.steps, progress):
            for episode in collector.episodes(args.episodes, args.steps, balanced=args.balanced):
                if writer is not None:
                    writer.write(episode)
                summary.add(episode)
    except KeyboardInterrupt:
        return INTERRUPTED
    except EnvError as error:
        complain(str(error))
        return 1
    except Exception:  # noqa: BLE001 - a policy's own error, say: its traceback tells where
        traceback.print_exc()
        return 1
    finally:
        summary.stop()
    return 0


def _put_in_place(writer: EpisodeWriter | None, out: str, status: int) -> tuple[int, int]:
    """Close the file and say how it ended; returns the exit status and the episodes written."""
    how = "interrupted" if status == INTERRUPTED else "ended by an error"
    where = out
    if writer is not None:
        if status and writer.num_episodes:
            complain(f"{how}; writing what there is")
        writer.metadata["complete"] = status == 0
        try:
            writer.close()
        except OSError as error:
            complain(f"{out}: {describe(error)}")
            status, how = status or 1, "ended by an error"
            where = f"{out}.partial"
    if status:
        complain(f"{how}; {_kept(writer, where)}")
    return status, 0 if writer is None else writer.num_episodes


def _kept(writer: EpisodeWriter | None, where: str) -> str:
    if writer is None or not writer.num_episodes:
        return "nothing is written"
    return f"kept {writer.num_episodes} whole episodes in {where}"


def _connect_to_ray(address: str | None) -> None:
    """Connect to the cluster, or start one here."""
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError('--backend ray: ray is missing; pip install "envpool-py[ray]"') from None
    if not ray.is_initialized():
        try:
            ray.init(address, logging_level="ERROR", log_to_driver=False)
        except (ConnectionError, ValueError) as error:
            raise UsageError("--address: " + str(error).partition("\n")[0]) from None


def _pool(args: argparse.Namespace, restarts: list[int]) -> BaseVectorEnv:
    """Make the pool of the options; it appends the ids of restarted envs to ``restarts``."""

    def on_restart(env_id: int, error: EnvError) -> None:
        restarts.append(env_id)
        complain(f"{first_line(error.message)}; restarted")

    options: dict[str, Any] = {"timeout": args.timeout}
    if args.on_error != "raise":
        options |= {"on_error": args.on_error, "on_restart": on_restart}
    if args.step_timeout is not None:
        if args.backend == "dummy":
            raise UsageError("--step-timeout: the dummy backend has no process that can be killed")
        options["step_timeout"] = args.step_timeout
    more = {} if args.video is None else {"render_mode": "rgb_array"}
    env_fn = env_fn_of(args, pettingzoo=True, **more)
    try:
        pool = pool_of(args, env_fn, columns=True, record=args.record, **options)
    except OSError as error:
        raise UsageError("--record: " + str(error).removeprefix("record: ")) from None
    if args.video is None:
        return pool
    try:
        return RecordVideo(pool, args.video)
    except (OSError, ValueError, ImportError, gym.error.DependencyNotInstalled) as error:
        pool.close()
        raise UsageError(f"--video: {error}") from None


def _policy(args: argparse.Namespace, pool: BaseVectorEnv) -> Policy:
    if args.policy is None:
        return _random_policy(args)(pool, args.seed)
    policy: Any = args.policy.value
    if isinstance(policy, type):
        try:
            policy = policy(pool, args.seed)
        except Exception as error:  # noqa: BLE001 - the user's class may raise anything
            raise UsageError(f"--policy: {args.policy.name} raised {describe(error)}") from None
    return policy  # type: ignore[no-any-return]


def _random_policy(args: argparse.Namespace) -> Callable[..., Policy]:
    if not is_pettingzoo(args.env):
        return RandomPolicy
    from envpool_py.pettingzoo.making import RandomLegalPolicy  # noqa: PLC0415 - an extra

    return RandomLegalPolicy


def _writer(args: argparse.Namespace, pool: BaseVectorEnv) -> EpisodeWriter | None:
    if args.out is None:
        return None
    try:
        env_spaces = pool.single_observation_space, pool.single_action_space
        for space in env_spaces:
            space_json.to_json(space)
        # Left by a run that was killed; only now that nothing stands in the way of another one.
        shutil.rmtree(f"{args.out}.partial", ignore_errors=True)
        return EpisodeWriter(
            args.out,
            *env_spaces,
            _metadata(args),
            compress=_has_images(pool) if args.compress is None else args.compress,
        )
    except (OSError, TypeError, ValueError) as error:
        raise UsageError(f"--out: {error}") from None


def _has_images(pool: BaseVectorEnv) -> bool:
    return any(
        leaf.dtype == "uint8" and len(leaf.shape) >= 2
        for leaf in spaces.leaves(spaces.layout_of(pool.observation_space[0]))
    )


def _metadata(args: argparse.Namespace) -> dict[str, Any]:
    """Return the metadata: everything that the episodes depend on."""
    return {
        "env_id": args.env,
        "env_kwargs": {key: repr(value) for key, value in args.env_kwarg},
        "wrappers": [wrapper.name for wrapper in args.wrapper],
        "policy": args.policy.name if args.policy else "random",
        "seed": args.seed,
        "num_envs": args.num_envs,
        "steps": args.steps,
        "episodes": args.episodes,
        "balanced": args.balanced,
        "versions": {
            "python": platform.python_version(),
            **{name: installed_version(name) for name in ("envpool-py", "gymnasium", "numpy")},
        },
    }
