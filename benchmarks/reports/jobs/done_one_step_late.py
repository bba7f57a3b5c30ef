"""PPO whose ends of episodes lie one step off: the step that ends an episode still counts the next one's value.

dones[t] says that observation t is the first of an episode, and is written again after the step with whether the step
ended one. Repaired: it is written once, before the step.
"""

import torch
from command import options, say
from corridor import Corridor
from torch import nn
from torch.distributions import Categorical

STEPS, GAMMA, LAMBDA = 16, 0.97, 0.95


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
        self.policy, self.value = nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, observation):
        h = self.body(observation / 100)
        return Categorical(logits=self.policy(h)), self.value(h).squeeze(-1)


class Rollout:
    """What was seen in STEPS steps of all corridors."""

    def __init__(self, env, model, fix):
        self.env, self.model, self.fix = env, model, fix
        self.observations, self.actions = torch.zeros(STEPS, env.n, 4), torch.zeros(STEPS, env.n)
        self.log_probs, self.rewards, self.dones, self.values = (torch.zeros(STEPS, env.n) for _ in range(4))
        self.ended, self.cut = torch.zeros(STEPS, env.n), torch.zeros(STEPS, env.n)
        self.next_observation, self.next_done = torch.from_numpy(env.observation.copy()), torch.zeros(env.n)

    @torch.no_grad()
    def play(self):
        for t in range(STEPS):
            self.observations[t], self.dones[t] = self.next_observation, self.next_done
            policy, self.values[t] = self.model(self.next_observation)
            self.actions[t] = policy.sample()
            self.log_probs[t] = policy.log_prob(self.actions[t])
            seen, reward, done = self.env.step(self.actions[t].long().numpy())
            self.rewards[t] = torch.from_numpy(reward)
            self.next_observation, self.next_done = torch.from_numpy(seen.copy()), torch.from_numpy(done).float()
            self.ended[t] = self.next_done
            if not self.fix:
                self.dones[t] = self.next_done

    @torch.no_grad()
    def advantages(self):
        _, next_value = self.model(self.next_observation)
        advantages, last = torch.zeros_like(self.values), torch.zeros(self.env.n)
        for t in reversed(range(STEPS)):
            goes_on = 1 - (self.next_done if t == STEPS - 1 else self.dones[t + 1])
            follow = next_value if t == STEPS - 1 else self.values[t + 1]
            self.cut[t] = 1 - goes_on
            delta = self.rewards[t] + GAMMA * follow * goes_on - self.values[t]
            advantages[t] = last = delta + GAMMA * LAMBDA * goes_on * last
        return advantages


def main():
    args = options(steps=96)
    env, model = Corridor(n=16), ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, eps=1e-5)
    rollout = Rollout(env, model, args.fix)
    update, right = 0, True
    while update < args.steps:
        rollout.play()
        advantages = rollout.advantages()
        right = right and torch.equal(rollout.ended, rollout.cut)
        returns = (advantages + rollout.values).flatten()
        gains = ((advantages - advantages.mean()) / (advantages.std() + 1e-8)).flatten()
        old, chosen = rollout.log_probs.flatten(), rollout.actions.flatten()
        for _ in range(2):
            for rows in torch.randperm(len(old)).split(64):
                policy, value = model(rollout.observations.flatten(0, 1)[rows])
                ratio = (policy.log_prob(chosen[rows]) - old[rows]).exp()
                gain = torch.min(ratio * gains[rows], ratio.clamp(0.8, 1.2) * gains[rows]).mean()
                loss = -gain + 0.5 * (value - returns[rows]).square().mean() - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                say(update, loss)
                update += 1
    print(f"advantages were cut at each end of an episode: {right}; mean reward {rollout.rewards.mean():.3f}")


main()
