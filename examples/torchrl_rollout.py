"""TorchRL's own GymWrapper over a vector env: ours or Gymnasium's. Needs torchrl.

python examples/torchrl_rollout.py
python examples/torchrl_rollout.py --vector gymnasium --mode sync
"""

# Without "from __future__ import annotations": TorchRL reads the annotation of the policy.

import argparse

import torch
from gymnasium.vector import AutoresetMode
from tensordict import TensorDictBase
from torchrl.envs import GymWrapper


def lean(tensordict: TensorDictBase) -> TensorDictBase:
    """Push CartPole's cart to the side to which the pole falls."""
    pole = tensordict["observation"][..., 2]
    return tensordict.set("action", torch.nn.functional.one_hot((pole > 0).long(), 2))


def main() -> None:
    """Collect one rollout, and print its contents."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vector", choices=["ours", "gymnasium"], default="ours")
    parser.add_argument("--mode", choices=["sync", "async"], default="async")
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    if args.vector == "ours":
        from envpool_py.gymnasium import make_vec  # noqa: PLC0415
    else:
        from gymnasium import make_vec  # noqa: PLC0415

    envs = make_vec(
        "CartPole-v1",
        num_envs=args.num_envs,
        vectorization_mode=args.mode,
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},  # as TorchRL demands
    )
    env = GymWrapper(envs)
    env.set_seed(0)
    data = env.rollout(args.steps, lean, break_when_any_done=False)
    env.close()
    episodes = int(data["next", "done"].sum())
    # The sum of all values shows whether two rollouts are the same.
    total = data["observation"].double().sum() + data["next", "observation"].double().sum()
    print(f"{data.numel()} steps  {episodes} episodes  checksum {total:.9f}")


if __name__ == "__main__":  # TorchRL has worker processes import this file
    main()
