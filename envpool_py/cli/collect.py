"""``envpool-py collect``: whole episodes of one environment, collected over a pool."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import platform
import secrets
import traceback
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from envpool_py import spaces
from envpool_py.cli.arguments import (
    INTERRUPTED,
    Imported,
    UsageError,
    add_env_options,
    check_writable,
    complain,
    find_in_working_directory,
    imported,
    installed_version,
    integer,
    seconds,
)
from envpool_py.cli.env_id import env_spec
from envpool_py.cli.progress import showing
from envpool_py.cli.show import Summary
from envpool_py.collector import AsyncCollector, EpisodeWriter, Policy, RandomPolicy
from envpool_py.errors import EnvError, describe
from envpool_py.pool import BaseVectorEnv
from envpool_py.pools import BACKENDS
from envpool_py.worker.limits import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable

_EPILOG = """\
With one seed and number of envs the same episodes are collected, bit for bit, with every backend,
number of processes, wait-num and timeout, because each env does a fixed share of the work. A custom
policy should depend only on each env's observations. With --no-balanced an env that is free takes
the next episode: this is faster if some envs are slow, and the episodes then depend on timing.

Ctrl-C ends it: whole episodes are kept, and the exit status is 130.
"""


def register(commands: Any) -> None:
    """Add the parser of this command to ``commands``."""
    parser = commands.add_parser(
        "collect",
        help="collect whole episodes of one environment",
        description="Collect whole episodes of one environment with a pool, asynchronously.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "env_id", metavar="ENV_ID", help="as gymnasium.make takes it, or PettingZoo's name"
    )
    limit = parser.add_mutually_exclusive_group(required=True)
    limit.add_argument(
        "--steps",
        type=integer(1),
        metavar="N",
        help="no env starts an episode once it has done its share of N steps, and episodes that"
        " run are finished: at least N steps",
    )
    limit.add_argument(
        "--episodes", type=integer(1), metavar="N", help="collect exactly N episodes"
    )
    parser.add_argument(
        "--num-envs", type=integer(1), default=8, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--wait-num",
        type=integer(1),
        metavar="K",
        help="rows that a batch waits for; default: half of the envs",
    )
    parser.add_argument(
        "--timeout", type=seconds, metavar="SECONDS", help="that a batch waits for K rows"
    )
    parser.add_argument(
        "--backend",
        choices=tuple(BACKENDS),
        default="shmem",
        help="default: %(default)s; ray: on the nodes of a Ray cluster",
    )
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help="of the Ray cluster, as ray.init takes it, auto for the one on this machine; default:"
        " that of RAY_ADDRESS, or a new one on this machine",
    )
    parser.add_argument(
        "--num-processes",
        type=integer(1),
        metavar="N",
        help="processes, or actors of Ray, that the envs are spread over; default: one per core."
        " For envs that wait rather than compute, as many as there are envs",
    )
    parser.add_argument(
        "--balanced",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether each env does a fixed share, so that timing plays no part; default: yes",
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
    add_env_options(parser)
    parser.add_argument("--out", metavar="FILE.npz", help="where to write the episodes")
    parser.add_argument(
        "--compress",
        action=argparse.BooleanOptionalAction,
        help="whether to compress the file; default: where observations are images",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out ``envpool-py collect``; returns the exit status.

    Raises:
        UsageError: bad input.
    """
    _check(args)
    if args.seed is None:
        args.seed = secrets.randbits(31)
    summary: Summary | None = None
    status = 0
    written: int | None = None  # episodes; None: it has not come to that
    try:
        with _pool(args) as pool:
            policy = _policy(args, pool)
            writer = _writer(args, pool)
            summary = Summary(AsyncCollector(pool, policy, seed=args.seed))
            status = _collect(args, writer, summary)
            status, written = _put_in_place(writer, args.out, status)
    except KeyboardInterrupt:
        if written is None:
            complain("interrupted; nothing is written")
        # Else it is the second time, so as not to wait for the envs' end.
        status = INTERRUPTED
    if summary is not None:
        summary.show(args.seed, args.out if written else None)
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
    written = 0
    how = "interrupted" if status == INTERRUPTED else "ended by an error"
    if writer is not None:
        if status and writer.num_episodes:
            complain(f"{how}; writing what there is, which another Ctrl-C would drop")
        writer.metadata["complete"] = status == 0
        try:
            writer.close()
            written = writer.num_episodes
        except OSError as error:
            complain(f"{out}: {describe(error)}")
            status, how = status or 1, "ended by an error"
    if status:
        kept = f"kept {written} whole episodes in {out}" if written else "nothing is written"
        complain(f"{how}; {kept}")
    return status, written


def _check(args: argparse.Namespace) -> None:
    """What can be known to be wrong before anything is started."""
    if args.wait_num is None:
        args.wait_num = max(1, args.num_envs // 2)
    elif args.wait_num > args.num_envs:
        raise UsageError(f"--wait-num is {args.wait_num}, but there are {args.num_envs} envs")
    if args.backend == "dummy" and args.num_processes is not None:
        raise UsageError("--num-processes: the dummy backend has no processes")
    if args.backend != "ray" and args.address is not None:
        raise UsageError("--address: only the ray backend has a cluster")
    names = [key for key, _ in args.env_kwarg]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--env-kwarg: {name} is given twice")
    if args.seed is not None and args.seed + args.num_envs > 1 << 63:
        raise UsageError(f"--seed: must be below 2**63 - {args.num_envs}, got {args.seed}")
    if args.out is not None:
        check_writable("--out", args.out)


def _pool(args: argparse.Namespace) -> BaseVectorEnv:
    env_fns = [_env_fn(args)] * args.num_envs
    options: dict[str, Any] = {
        "wait_num": args.wait_num,
        "timeout": args.timeout,
        "columns": True,
    }
    if args.backend == "ray":
        _connect_to_ray(args.address)
        options["num_processes"] = args.num_processes
    elif args.backend != "dummy":
        options["num_processes"] = min(args.num_processes or len(usable_cores()), args.num_envs)
    try:
        return BACKENDS[args.backend](env_fns, **options)
    except EnvError as error:
        raise UsageError(str(error).partition("\n")[0]) from None


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


def _env_fn(args: argparse.Namespace) -> Callable[[], Any]:
    kwargs = dict(args.env_kwarg)
    wrappers = [wrapper.value for wrapper in args.wrapper]
    if _is_pettingzoo(args.env_id):
        from envpool_py.pettingzoo.making import MakeByName  # noqa: PLC0415 - an extra

        return MakeByName(args.env_id, kwargs, wrappers)
    spec = env_spec(args.env_id)
    return functools.partial(make_env, spec, {"disable_env_checker": True, **kwargs}, wrappers)


def _is_pettingzoo(env_id: str) -> bool:
    """Whether PettingZoo, and not Gymnasium, knows an env of this name."""
    if env_id.rpartition(":")[2] in gym.registry or importlib.util.find_spec("pettingzoo") is None:
        return False
    from envpool_py.pettingzoo.making import find_env  # noqa: PLC0415 - an extra

    find_in_working_directory()
    return find_env(env_id) is not None


def make_env(
    spec: gym.envs.registration.EnvSpec,
    kwargs: dict[str, Any],
    wrappers: list[Callable[[Any], Any]],
) -> Any:
    """Make one env; runs in the worker process, which need not know the env's id."""
    env: Any = gym.make(spec, **kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def _policy(args: argparse.Namespace, pool: BaseVectorEnv) -> Policy:
    given: Imported = args.policy or Imported("random", _random_policy(args))
    if not isinstance(given.value, type):
        return given.value
    try:
        made: Policy = given.value(pool, args.seed)
    except Exception as error:  # noqa: BLE001 - the user's class may raise anything
        raise UsageError(f"--policy: {given.name} raised {describe(error)}") from None
    return made


def _random_policy(args: argparse.Namespace) -> Callable[..., Any]:
    if not _is_pettingzoo(args.env_id):
        return RandomPolicy
    from envpool_py.pettingzoo.making import RandomLegalPolicy  # noqa: PLC0415 - an extra

    return RandomLegalPolicy


def _writer(args: argparse.Namespace, pool: BaseVectorEnv) -> EpisodeWriter | None:
    if args.out is None:
        return None
    for what in ("observation_space", "action_space"):
        first, *others = getattr(pool, what)
        for i, other in enumerate(others, 1):
            if other != first:
                raise UsageError(
                    f"--out: one file holds one {what}, but that of env {i} is {other} and that of"
                    f" env 0 {first}"
                )
    try:
        return EpisodeWriter(
            args.out,
            pool.observation_space[0],
            pool.action_space[0],
            _metadata(args),
            compress=_has_images(pool) if args.compress is None else args.compress,
        )
    except (OSError, TypeError) as error:
        raise UsageError(f"--out: {error}") from None


def _has_images(pool: BaseVectorEnv) -> bool:
    return any(
        leaf.dtype == "uint8" and len(leaf.shape) >= 2
        for leaf in spaces.leaves(spaces.layout_of(pool.observation_space[0]))
    )


def _metadata(args: argparse.Namespace) -> dict[str, Any]:
    """Where the episodes come from: all that they depend on."""
    return {
        "env_id": args.env_id,
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
