"""Learns to balance by actor and critic; episodes are cut after 25 steps, and that is taken for an end.

The value of the state where an episode was cut is left out of the returns, though the task would go on: states near
the limit look worthless. Repaired: the last value is there where the episode was cut and not ended.
"""

import argparse

import torch
from torch import nn

ENVIRONMENTS, HORIZON, LIMIT, GAMMA, LAMBDA = 32, 16, 25, 0.95, 0.9


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(13)
    actor = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 1))
    critic = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 1))
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-3)
    state, age = 0.5 * torch.randn(ENVIRONMENTS, 3), torch.randint(0, LIMIT, (ENVIRONMENTS,))
    for update in range(100):
        rows = []
        for _ in range(HORIZON):
            with torch.no_grad():
                policy = torch.distributions.Normal(actor(state)[:, 0], 0.5)
                action = policy.sample()
                after = state + 0.1 * torch.stack([state[:, 1], action + state[:, 0], -state[:, 2]], dim=1)
                age = age + 1
                fell = after[:, 0].abs() > 2
                cut = (age >= LIMIT) & ~fell
                value, beyond = critic(state)[:, 0], critic(after)[:, 0]
            bootstrapped = ~fell if args.fix else ~(fell | cut)
            rows.append((state, action, 1.0 - 0.2 * after[:, 0].square(), value, beyond * bootstrapped, fell | cut))
            fresh = 0.5 * torch.randn(ENVIRONMENTS, 3)
            state, age = torch.where((fell | cut)[:, None], fresh, after), torch.where(fell | cut, 0, age)
        advantage, advantages = torch.zeros(ENVIRONMENTS), []
        for _, _, reward, value, beyond, over in reversed(rows):
            advantage = reward + GAMMA * beyond - value + GAMMA * LAMBDA * advantage * ~over
            advantages.insert(0, advantage)
        seen, action, _, value = (torch.cat([row[i] for row in rows]) for i in range(4))
        gain = torch.cat(advantages)
        goal = gain + value
        policy = torch.distributions.Normal(actor(seen)[:, 0], 0.5)
        scaled = (gain - gain.mean()) / (gain.std() + 1e-6)
        loss = -(policy.log_prob(action) * scaled).mean() + 0.5 * nn.functional.mse_loss(critic(seen)[:, 0], goal)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 5.0)
        optimizer.step()
        if update % 20 == 0:
            print(f"update {update} loss {loss.item():.3f} value {value.mean().item():.2f}", flush=True)
    kept = sum(((row[5]) & (row[4] != 0)).sum().item() for row in rows)
    print(f"end: {'no' if kept == 0 else 'some'} episodes that were cut have a value beyond", flush=True)


main()
