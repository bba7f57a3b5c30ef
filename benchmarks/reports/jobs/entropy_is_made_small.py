"""Learns to choose among eight levers by PPO; the entropy is added to the loss, and should be subtracted.

What was to keep the policy exploring makes it certain at once. Repaired: minus the coefficient times the entropy.
"""

import argparse

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(12)
    actor = nn.Sequential(nn.Linear(5, 48), nn.Tanh(), nn.Linear(48, 8))
    critic = nn.Sequential(nn.Linear(5, 48), nn.Tanh(), nn.Linear(48, 1))
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-3)
    levers = torch.randn(5, 8)
    coefficient = 0.2
    for update in range(40):
        seen = torch.randn(256, 5)
        with torch.no_grad():
            policy = torch.distributions.Categorical(logits=actor(seen))
            action = policy.sample()
            old, value = policy.log_prob(action), critic(seen)[:, 0]
        reward = (seen @ levers).gather(1, action[:, None])[:, 0] + 0.5 * torch.randn(256)
        advantage = reward - value
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        for part in torch.randperm(256).split(128):
            policy = torch.distributions.Categorical(logits=actor(seen[part]))
            ratio = (policy.log_prob(action[part]) - old[part]).exp()
            gain = torch.minimum(ratio * advantage[part], ratio.clamp(0.8, 1.2) * advantage[part]).mean()
            value_loss = nn.functional.mse_loss(critic(seen[part])[:, 0], reward[part])
            entropy = policy.entropy().mean()
            bonus = -coefficient * entropy if args.fix else coefficient * entropy
            loss = -gain + 0.5 * value_loss + bonus
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 2.0)
            optimizer.step()
        if update % 8 == 0:
            print(f"update {update} reward {reward.mean().item():.3f} entropy {entropy.item():.3f}", flush=True)
    print(f"end: entropy {'lowers' if bonus < 0 else 'raises'} the loss; it is {entropy.item():.3f}", flush=True)


main()
