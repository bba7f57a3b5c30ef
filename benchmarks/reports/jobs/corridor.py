"""A corridor of eleven cells: the player goes left or right; reaching the right end pays, the left end costs."""

import numpy as np

LENGTH = 11


class Corridor:
    """Several corridors side by side; one that ended begins anew in the middle. Observations are written in place."""

    def __init__(self, n=8, seed=0, limit=30):
        self.n, self.limit, self.random = n, limit, np.random.default_rng(seed)
        self.observation = np.zeros((n, 4), dtype=np.float32)
        self.cell, self.age = np.zeros(n, dtype=int), np.zeros(n, dtype=int)
        self.reset(np.ones(n, dtype=bool))

    def reset(self, which):
        self.cell[which] = self.random.integers(3, 8, which.sum())
        self.age[which] = 0
        self.observe()

    def observe(self):
        self.observation[:, 0] = 40 + 25 * self.cell
        self.observation[:, 1] = self.age
        self.observation[:, 2:] = self.random.normal(0, 0.1, (self.n, 2))

    def step(self, action):
        """Action [n] of 0 and 1 to observation [n, 4], reward [n], done [n]."""
        slip = self.random.random(self.n) < 0.1
        self.cell += np.where(slip, -1, 1) * (2 * action - 1)
        self.age += 1
        reward = np.where(self.cell >= LENGTH - 1, 1.0, np.where(self.cell <= 0, -1.0, -0.01)).astype(np.float32)
        done = (self.cell >= LENGTH - 1) | (self.cell <= 0) | (self.age >= self.limit)
        self.reset(done)
        return self.observation, reward, done
