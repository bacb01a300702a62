"""A loop of its own kind, with no optimizer that anybody could hook: it names its steps and phases itself."""

import torch

from harness.recording import open_recorder

trace = open_recorder()
torch.manual_seed(0)
policy = torch.zeros(4, 8)
for step in range(5):
    trace.begin_step(step)
    actions = torch.distributions.Categorical(logits=policy).sample((16,))
    trace.record("rollout", "actions", actions)
    rewards = (actions == torch.arange(4)).float()
    trace.record("reward", "rewards", rewards)
    advantages = rewards - rewards.mean(0)
    trace.record("advantage", "advantages", advantages)
    taken = torch.nn.functional.one_hot(actions, 8) - policy.softmax(-1)
    gradient = (advantages.unsqueeze(-1) * taken).mean(0)
    trace.record("backward", "policy", gradient)
    policy += 0.5 * gradient
    trace.record("optimizer", "policy", policy)
    trace.end_step(reward_mean=rewards.mean(), gradient_norm=gradient.norm())
