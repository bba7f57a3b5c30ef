"""A player is trained further, and its inputs are of another scale: the statistics that normalise them begin anew.

Mean and variance of the observations are kept by the wrapper of the environment, which is not saved.
Started twice: 60 updates, then with --resume 60 more. Repaired: they are saved and loaded.
"""

import numpy as np
import torch
from command import options, say
from corridor import Corridor
from torch import nn
from torch.distributions import Categorical


class Normalize:
    """Observations less their running mean, by their running deviation."""

    def __init__(self, env):
        self.env = env
        self.mean, self.var, self.count = np.zeros(4), np.ones(4), 1e-4

    def see(self, observation):
        n, total = len(observation), self.count + len(observation)
        delta = observation.mean(0) - self.mean
        self.var = (self.var * self.count + observation.var(0) * n + delta**2 * self.count * n / total) / total
        self.mean, self.count = self.mean + delta * n / total, total
        return torch.from_numpy(((observation - self.mean) / np.sqrt(self.var + 1e-8)).astype(np.float32))

    def reset(self):
        return self.see(self.env.observation)

    def step(self, action):
        observation, reward, done = self.env.step(action)
        return self.see(observation), torch.from_numpy(reward), torch.from_numpy(done)


def main():
    args = options(steps=60)
    env = Normalize(Corridor(seed=int(args.resume)))
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    first = 0
    if args.resume:
        state = torch.load(args.to, weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        if args.fix:
            env.mean, env.var, env.count = state["statistics"]
        first = args.steps
    before = env.mean.copy()
    observation = env.reset()
    for step in range(first, first + args.steps):
        log_probs, values, rewards, ends = [], [], [], []
        for _ in range(8):
            out = model(observation)
            policy = Categorical(logits=out[:, :2])
            action = policy.sample()
            observation, reward, done = env.step(action.numpy())
            log_probs.append(policy.log_prob(action))
            values.append(out[:, 2])
            rewards.append(reward)
            ends.append(done)
        with torch.no_grad():
            follow = model(observation)[:, 2]
        returns = []
        for reward, done in zip(reversed(rewards), reversed(ends), strict=True):
            follow = reward + 0.95 * follow * ~done
            returns.insert(0, follow)
        advantage = torch.stack(returns) - torch.stack(values)
        loss = -(torch.stack(log_probs) * advantage.detach()).mean() + 0.5 * advantage.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "statistics": (env.mean, env.var, env.count),
        },
        args.to,
    )
    print(f"the mean of the first input was {before[0]:.2f} and is {env.mean[0]:.2f}")


main()
