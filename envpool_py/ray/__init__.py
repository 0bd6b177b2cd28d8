"""Envs on the nodes of a Ray cluster: ``RayVectorEnv``; needs the extra ``ray``."""

try:
    from envpool_py.ray.vector_env import RayEnvWorker, RayVectorEnv
except ImportError as error:
    raise ImportError("RayVectorEnv needs Ray: pip install 'envpool-py[ray]'") from error

__all__ = ["RayEnvWorker", "RayVectorEnv"]
