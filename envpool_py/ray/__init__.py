"""Envs on the nodes of a Ray cluster: ``RayVectorEnv``; needs the extra ``ray``."""

try:
    import ray as _ray
except ImportError as error:
    raise ImportError("RayVectorEnv needs Ray: pip install 'envpool-py[ray]'") from error
del _ray

from envpool_py.ray.vector_env import RayEnvWorker, RayVectorEnv  # noqa: E402 - only with Ray

__all__ = ["RayEnvWorker", "RayVectorEnv"]
