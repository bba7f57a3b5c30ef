"""Every transition in the memory leads from a state to itself: the environment writes its observation in place.

What is kept as the state before the action is the same array as the state after it. Repaired: it is copied.
"""

import numpy as np
import torch
from command import options, say
from corridor import Corridor
from torch import nn


def main():
    args = options(steps=100)
    env, random = Corridor(), np.random.default_rng(1)
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    target = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    states, actions, rewards, follows, ends = [], [], [], [], []
    same = 0.0
    last = env.observation
    for step in range(args.steps):
        for _ in range(4):
            state = last.copy() if args.fix else last
            with torch.no_grad():
                action = net(torch.from_numpy(state) / 100).argmax(1).numpy()
            action = np.where(random.random(env.n) < 0.3, random.integers(0, 2, env.n), action)
            last, reward, done = env.step(action)
            states.append(np.array(state))
            actions.append(action)
            rewards.append(reward)
            follows.append(np.array(last))
            ends.append(done)
        chosen = random.integers(0, len(states), 4)
        x = torch.from_numpy(np.concatenate([states[i] for i in chosen])) / 100
        y = torch.from_numpy(np.concatenate([follows[i] for i in chosen])) / 100
        a, r, d = (torch.from_numpy(np.concatenate([column[i] for i in chosen])) for column in (actions, rewards, ends))
        with torch.no_grad():
            goal = r + 0.95 * target(y).max(1).values * ~d
        loss = nn.functional.smooth_l1_loss(net(x).gather(1, a[:, None]).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        same += float((x == y).all(1).float().mean())
        if step % 20 == 19:
            target.load_state_dict(net.state_dict())
        say(step, loss)
    print(f"{same / args.steps:.0%} of the transitions lead from a state to itself")


main()
