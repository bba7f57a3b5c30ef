"""Names that arguments of models have."""

from __future__ import annotations

TIMES = (
    *("t", "time", "times", "timestep", "timesteps", "time_step", "time_steps"),
    *("sigma", "sigmas", "noise_level", "noise_levels", "logsnr", "log_snr"),
)
"""Names of inputs that are times or noise levels, as diffusion models have."""
POSITIONS = ("position_ids", "positions", "pos_ids", "input_pos", "cache_position")
"""Names of inputs that are positions of tokens."""
