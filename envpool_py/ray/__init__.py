"""Envs on the nodes of a Ray cluster: ``RayVectorEnv``; needs the extra ``ray``."""

try:
    from envpool_py.ray.vector_env import RayEnvWorker, RayVectorEnv
except ImportError as error:
    from envpool_py.extras import hint as _hint

    raise ImportError(f"RayVectorEnv needs Ray; {_hint('ray')}") from error

__all__ = ["RayEnvWorker", "RayVectorEnv"]
