"""The modules of ``stable_baselines3.common`` that concern envs, by the same names."""
