"""Q-learning whose target net stays as it was drawn: at each synchronisation it loads its own weights.

Repaired: it loads those of the net that is trained.
"""

from collections import deque

import torch
from command import options, say
from corridor import Corridor
from torch import nn
from torch.nn import functional as F

GAMMA, SYNC = 0.95, 15


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, observation):
        return self.net(observation / 100)


def play(env, net, explore):
    """A step of each corridor."""
    seen = torch.from_numpy(env.observation.copy())
    with torch.no_grad():
        action = net(seen).argmax(1)
    action = torch.where(torch.rand(env.n) < explore, torch.randint(0, 2, (env.n,)), action)
    follow, reward, done = env.step(action.numpy())
    rows = (seen, action, torch.from_numpy(reward), torch.from_numpy(follow.copy()), torch.from_numpy(done))
    return list(zip(*rows, strict=True)), reward.mean()


def main():
    args = options(steps=120)
    env, eval_net, target_net = Corridor(n=16), QNet(), QNet()
    target_net.load_state_dict(eval_net.state_dict())
    drawn = target_net.net[0].weight.detach().clone()
    optimizer = torch.optim.Adam(eval_net.parameters(), lr=3e-3)
    memory = deque(maxlen=4000)
    for _ in range(20):
        memory.extend(play(env, eval_net, 1.0)[0])
    for step in range(args.steps):
        memory.extend(play(env, eval_net, max(0.1, 1 - step / 60))[0])
        rows = [memory[i] for i in torch.randint(len(memory), (64,)).tolist()]
        seen, action, reward, follow, done = (torch.stack(column) for column in zip(*rows, strict=True))
        with torch.no_grad():
            target = reward + GAMMA * target_net(follow).max(1).values * ~done
        loss = F.smooth_l1_loss(eval_net(seen).gather(1, action[:, None]).squeeze(1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % SYNC == 0:
            target_net.load_state_dict((eval_net if args.fix else target_net).state_dict())
        say(step, loss)
    print(f"the target net is as it was drawn: {torch.equal(drawn, target_net.net[0].weight)}")


main()
