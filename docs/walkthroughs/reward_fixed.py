"""A policy learns to count by GRPO: each token of a response should be the one before it plus one."""

import torch
from torch import Tensor, nn

import trueline

WORDS, WIDTH, LENGTH, PROMPTS, GROUP = 16, 32, 16, 16, 8


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(WORDS, WIDTH), nn.GRUCell(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        state, states = torch.zeros(len(ids), WIDTH), []
        for token in ids.T:
            state = self.body(self.embed(token), state)
            states.append(state)
        return self.head(torch.stack(states, 1))


class Engine:
    """Samples token by token, with weights and code of its own."""

    def __init__(self, policy: Policy) -> None:
        self.weights = {name: value.detach().clone() for name, value in policy.named_parameters()}

    def load(self, policy: Policy) -> None:
        for name, value in policy.named_parameters():
            self.weights[name] = value.detach().clone()

    def generate(self, prompts: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens of responses, and the log-probability of each."""
        w, state, tokens, logps = self.weights, torch.zeros(len(prompts), WIDTH), [prompts], []
        for _ in range(LENGTH):
            inputs = w["embed.weight"][tokens[-1]] @ w["body.weight_ih"].T + w["body.bias_ih"]
            reset, update, new = inputs.chunk(3, 1)
            own_reset, own_update, own_new = (state @ w["body.weight_hh"].T + w["body.bias_hh"]).chunk(3, 1)
            update = (update + own_update).sigmoid()
            state = (1 - update) * (new + (reset + own_reset).sigmoid() * own_new).tanh() + update * state
            logp = (state @ w["head.weight"].T + w["head.bias"]).log_softmax(-1)
            tokens.append(torch.multinomial(logp.exp(), 1)[:, 0])
            logps.append(logp.gather(-1, tokens[-1][:, None])[:, 0])
        return torch.stack(tokens[1:], 1), torch.stack(logps, 1)


torch.manual_seed(0)
policy = Policy()
engine = Engine(policy)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for step in range(161):
    engine.load(policy)
    trueline.rl.record_sync(step, policy.named_parameters(), engine.weights)
    prompts = torch.randint(WORDS, (PROMPTS,)).repeat_interleave(GROUP)
    ids, logp_rollout = engine.generate(prompts)
    before = torch.cat([prompts[:, None], ids[:, :-1]], 1)
    rewards = (ids == (before + 1) % WORDS).float().mean(1)
    groups = rewards.view(PROMPTS, GROUP)
    advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-3)).flatten()
    logits = policy(before)
    told = trueline.rl.of_logits(logits, ids)
    trueline.rl.record(
        step,
        response_ids=ids,
        logp_rollout=logp_rollout,
        logp_train=told.logp,
        entropy=told.entropy,
        varentropy=told.varentropy,
        versions=(step, step),
        sampling={"dtype": "float32"},
    )
    logp = logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    loss = -((logp - logp.detach()).exp() * advantages[:, None]).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        print(f"step {step}: reward {rewards.mean():.2f}")
