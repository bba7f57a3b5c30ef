"""Q-learning whose target network moves with every update: it is the trained network under another name.

Both are given the same model. Repaired: the target is a copy, made anew every 20 updates.
"""

import copy

import numpy as np
import torch
from command import options, say
from corridor import Corridor
from torch import nn


class DQN:
    def __init__(self, model, repaired):
        self.policy_net = model
        self.target_net = copy.deepcopy(model) if repaired else model
        self.optimizer = torch.optim.Adam(self.policy_net.parameters(), lr=2e-3)
        self.updates = 0

    def update(self, observation, action, reward, follow, done):
        value = self.policy_net(observation).gather(1, action[:, None]).squeeze(1)
        with torch.no_grad():
            target = reward + 0.95 * self.target_net(follow).max(1).values * ~done
        loss = nn.functional.smooth_l1_loss(value, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if self.updates % 20 == 0:
            self.target_net.load_state_dict(self.policy_net.state_dict())
        return loss


def main():
    args = options(steps=100)
    env, random = Corridor(), np.random.default_rng(1)
    agent = DQN(nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)), args.fix)
    memory = []
    for step in range(args.steps):
        for _ in range(4):
            observation = torch.from_numpy(env.observation.copy()) / 100
            with torch.no_grad():
                action = agent.policy_net(observation).argmax(1).numpy()
            action = np.where(random.random(env.n) < 0.3, random.integers(0, 2, env.n), action)
            follow, reward, done = env.step(action)
            rows = (observation, torch.from_numpy(action), torch.from_numpy(reward))
            memory.append((*rows, torch.from_numpy(follow.copy()) / 100, torch.from_numpy(done)))
        chosen = [memory[i] for i in random.integers(0, len(memory), 4)]
        loss = agent.update(*(torch.cat([row[i] for row in chosen]) for i in range(5)))
        say(step, loss)
    print(f"the two networks are one: {agent.target_net is agent.policy_net}")


main()
