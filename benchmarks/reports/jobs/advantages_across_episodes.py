"""Advantages are carried over the end of an episode into the one before it.

The running sum is not cut where an episode ends. Repaired: it is cut.
"""

import torch
from command import options, say
from corridor import Corridor
from torch import nn
from torch.distributions import Categorical


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
        self.policy, self.value = nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, observation):
        h = self.body(observation / 100)
        return Categorical(logits=self.policy(h)), self.value(h).squeeze(-1)


def advantages(rewards, values, ends, last, cut, gamma=0.95, decay=0.95):
    """All [time, players]."""
    running, follow, out = torch.zeros_like(last), last, []
    for reward, value, done in zip(reversed(rewards), reversed(values), reversed(ends), strict=True):
        running = running * gamma * decay * (~done if cut else 1)
        running = running + reward + gamma * follow * ~done - value
        follow = value
        out.insert(0, running)
    return torch.stack(out)


def main():
    args = options(steps=96)
    env, model = Corridor(), ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    step, largest = 0, 0.0
    while step < args.steps:
        rows = []
        for _ in range(32):
            observation = torch.from_numpy(env.observation.copy())
            with torch.no_grad():
                policy, value = model(observation)
            action = policy.sample()
            _, reward, done = env.step(action.numpy())
            rows.append(
                (observation, action, policy.log_prob(action), value, torch.from_numpy(reward), torch.from_numpy(done))
            )
        with torch.no_grad():
            _, last = model(torch.from_numpy(env.observation.copy()))
        observations, actions, old, values, rewards, ends = zip(*rows, strict=True)
        advantage = advantages(rewards, values, ends, last, cut=args.fix)
        largest = max(largest, float(advantage[torch.stack(ends)].abs().max()))
        returns = (advantage + torch.stack(values)).flatten()
        flat = ((advantage - advantage.mean()) / (advantage.std() + 1e-8)).flatten()
        observation, action, log_prob = torch.cat(observations), torch.cat(actions), torch.cat(old)
        for _ in range(2):
            for chosen in torch.randperm(len(action)).split(64):
                policy, value = model(observation[chosen])
                ratio = (policy.log_prob(action[chosen]) - log_prob[chosen]).exp()
                gain = torch.min(ratio * flat[chosen], ratio.clamp(0.8, 1.2) * flat[chosen]).mean()
                loss = -gain + 0.5 * (value - returns[chosen]).square().mean() - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                say(step, loss)
                step += 1
    print(f"the largest advantage of a last action is {largest:.3f}, where rewards lie between -1 and 1")


main()
