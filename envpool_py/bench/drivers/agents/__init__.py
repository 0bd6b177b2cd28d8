"""How each library's pools of PettingZoo envs are stepped, one module per library.

A driver's function takes the job, the env_fns of parallel envs or of AEC envs, as the contestant
says, and batches of actions as ``games.draw_actions`` draws them.
"""
