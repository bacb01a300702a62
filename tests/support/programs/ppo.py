"""PPO in one file, in CleanRL's manner: several copies of a small game, an agent with two heads, TensorBoard if there.

    python ppo.py [--updates 4] [--seed 1] [--log DIR] [--weights FILE]

The game is a cart on a line that must be kept near the middle; written here so that the program needs torch alone.
"""

import argparse
import random

import torch
from torch import nn
from torch.distributions import Categorical

NUM_ENVS, NUM_STEPS, NUM_EPOCHS, NUM_MINIBATCHES = 4, 32, 2, 4
GAMMA, LAMBDA, CLIP, VALUE_WEIGHT, ENTROPY_WEIGHT = 0.99, 0.95, 0.2, 0.5, 0.01


class Carts:
    """NUM_ENVS carts at once: position and speed each; an action pushes left or right."""

    def __init__(self) -> None:
        self.state = torch.zeros(NUM_ENVS, 2)
        self.returns = torch.zeros(NUM_ENVS)

    def reset(self, which: torch.Tensor) -> None:
        """Put these carts somewhere near the middle."""
        for index in which.nonzero().flatten().tolist():
            self.state[index] = torch.tensor([random.uniform(-0.3, 0.3), random.uniform(-0.1, 0.1)])
        self.returns[which] = 0.0

    def step(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """(observation, reward, whether it ended, return of those that ended)."""
        position, speed = self.state.unbind(1)
        speed = 0.95 * speed + 0.1 * (2.0 * action - 1.0)
        self.state = torch.stack([position + 0.1 * speed, speed], 1)
        ended = self.state[:, 0].abs() > 1.0
        reward = torch.where(ended, -1.0, 1.0 - self.state[:, 0].abs())
        self.returns += reward
        finished = self.returns[ended]
        self.reset(ended)
        return self.state.clone(), reward, ended.float(), finished


def layer(num_in: int, num_out: int, gain: float = 2**0.5) -> nn.Linear:
    """A linear layer with orthogonal weights."""
    linear = nn.Linear(num_in, num_out)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    """An actor and a critic that share nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(layer(2, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0))
        self.actor = nn.Sequential(layer(2, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 2, 0.01))

    def act(self, seen: torch.Tensor, action: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        """(action, its log-probability, entropy, value) for each observation."""
        distribution = Categorical(logits=self.actor(seen))
        if action is None:
            action = distribution.sample()
        return action, distribution.log_prob(action), distribution.entropy(), self.critic(seen).squeeze(-1)


def rollout(agent: Agent, carts: Carts, seen: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor], list[float]]:
    """(last observation, [observations, actions, log-probabilities, advantages, returns], returns of whole games)."""
    steps: list[tuple[torch.Tensor, ...]] = []
    games: list[float] = []
    with torch.no_grad():
        for _ in range(NUM_STEPS):
            action, log_prob, _, value = agent.act(seen)
            after, reward, ended, finished = carts.step(action.float())
            steps.append((seen, action, log_prob, value, reward, ended))
            games += finished.tolist()
            seen = after
        observations, actions, log_probs, values, rewards, ends = (
            torch.stack(each) for each in zip(*steps, strict=True)
        )
        following = agent.act(seen)[3]
        advantages, running = torch.zeros_like(rewards), torch.zeros(NUM_ENVS)
        for t in reversed(range(NUM_STEPS)):
            delta = rewards[t] + GAMMA * following * (1 - ends[t]) - values[t]
            running = delta + GAMMA * LAMBDA * (1 - ends[t]) * running
            advantages[t], following = running, values[t]
    batch = [observations, actions, log_probs, advantages, advantages + values]
    return seen, [each.flatten(0, 1) for each in batch], games


def minibatch_loss(agent: Agent, batch: list[torch.Tensor]) -> torch.Tensor:
    """The clipped surrogate with value and entropy terms (Schulman et al., 2017, equation 9)."""
    observations, actions, old, advantages, returns = batch
    _, new, entropy, value = agent.act(observations, actions)
    ratio = (new - old).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy = -torch.min(advantages * ratio, advantages * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
    value_loss = 0.5 * ((value - returns) ** 2).mean()
    return policy + VALUE_WEIGHT * value_loss - ENTROPY_WEIGHT * entropy.mean()


def main() -> None:
    """Train, and tell the mean return of the games that ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", help="directory for TensorBoard")
    parser.add_argument("--weights", help="where to save the final weights")
    arguments = parser.parse_args()

    random.seed(arguments.seed)
    torch.manual_seed(arguments.seed)
    writer = None
    if arguments.log:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(arguments.log)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    carts = Carts()
    carts.reset(torch.ones(NUM_ENVS, dtype=torch.bool))
    seen = carts.state.clone()
    for update in range(arguments.updates):
        optimizer.param_groups[0]["lr"] = 2.5e-4 * (1 - update / arguments.updates)
        seen, batch, games = rollout(agent, carts, seen)
        for _ in range(NUM_EPOCHS):
            for chosen in torch.randperm(NUM_ENVS * NUM_STEPS).chunk(NUM_MINIBATCHES):
                loss = minibatch_loss(agent, [each[chosen] for each in batch])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        mean_return = sum(games) / len(games) if games else float("nan")
        print(f"update {update} return={mean_return:.4f} loss={loss.item():.6f}")
        if writer is not None:
            writer.add_scalar("charts/episodic_return", mean_return, update)
            writer.add_scalar("losses/loss", loss.item(), update)
    if writer is not None:
        writer.close()
    if arguments.weights:
        torch.save(agent.state_dict(), arguments.weights)


if __name__ == "__main__":
    main()
