"""PPO in which the ratio of new to old probabilities is 1 in each of its passes, so that nothing is ever clipped.

The old log-probabilities are computed from the policy as it is at the pass. Repaired: they are those of the rollout.
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


def rollout(env, model, length=16, gamma=0.95):
    rows = []
    for _ in range(length):
        observation = torch.from_numpy(env.observation.copy())
        with torch.no_grad():
            policy, value = model(observation)
        action = policy.sample()
        _, reward, done = env.step(action.numpy())
        rows.append((observation, action, policy.log_prob(action), value, torch.from_numpy(reward), done))
    with torch.no_grad():
        _, follow = model(torch.from_numpy(env.observation.copy()))
    returns = []
    for *_, reward, done in reversed(rows):
        follow = reward + gamma * follow * torch.from_numpy(~done)
        returns.insert(0, follow)
    observation, action, log_prob, value = (torch.cat([row[i] for row in rows]) for i in range(4))
    return observation, action, log_prob, torch.cat(returns) - value, torch.cat(returns)


def main():
    args = options(steps=96)
    env, model = Corridor(), ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    step, farthest = 0, 0.0
    while step < args.steps:
        observation, action, old, advantage, returns = rollout(env, model)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(4):
            for rows in torch.randperm(len(action)).split(64):
                policy, value = model(observation[rows])
                if args.fix:
                    before = old[rows]
                else:
                    with torch.no_grad():
                        before = model(observation[rows])[0].log_prob(action[rows])
                ratio = (policy.log_prob(action[rows]) - before).exp()
                gain = torch.min(ratio * advantage[rows], ratio.clamp(0.8, 1.2) * advantage[rows]).mean()
                loss = -gain + 0.5 * (value - returns[rows]).square().mean() - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                farthest = max(farthest, float((ratio.detach() - 1).abs().max()))
                say(step, loss)
                step += 1
    print(f"the ratio was at most {farthest:.6f} away from 1")


main()
