"""Envs on the nodes of a Ray cluster: ``RayVectorEnv``; needs the extra ``ray``."""

try:
    import ray as _ray  # noqa: F401 - found, or not
except ImportError as error:
    raise ImportError("RayVectorEnv needs Ray: pip install 'envpool-py[ray]'") from error

from envpool_py.ray.vector_env import RayEnvWorker, RayVectorEnv

__all__ = ["RayEnvWorker", "RayVectorEnv"]
