"""Reinforcement learning with libraries, on gymnasium's CartPole.

python reinforcement.py KIND
"""

import random
import sys
import warnings
from collections.abc import Callable

import gymnasium
import numpy as np
import torch
from outcome import is_time, nudge, save
from torch import nn


class Rewarded(gymnasium.Wrapper):
    """CartPole; planted: the reward of one of its steps."""

    def __init__(self, planted: int) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.planted, self.num_seen = planted, 0

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        seen, reward, ended, cut, info = self.env.step(action)
        self.num_seen += 1
        return seen, reward + 0.5 * is_time(self.num_seen, self.planted), ended, cut, info


def sb3_ppo() -> None:
    """Stable-Baselines3's PPO: 16 steps of its optimizer after each rollout of 64; planted in the second rollout."""
    from stable_baselines3 import PPO

    agent = PPO("MlpPolicy", Rewarded(planted=80), n_steps=64, batch_size=16, n_epochs=4, seed=1, device="cpu")
    agent.learn(192)
    save(agent.policy.state_dict().values())


def sb3_dqn() -> None:
    """Stable-Baselines3's DQN, from a replay buffer; planted: its target network."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback

    class Plant(BaseCallback):
        def _on_step(self) -> bool:
            if is_time(self.num_timesteps, 150):
                nudge(self.model.q_net_target.q_net[0].weight)
            return True

    agent = DQN("MlpPolicy", Rewarded(planted=-1), learning_starts=50, batch_size=16, seed=1, device="cpu")
    agent.learn(200, callback=Plant())
    save(agent.policy.state_dict().values())


def clean_ppo() -> None:
    """PPO in one function, in CleanRL's manner: 8 steps of the optimizer an update; planted: a reward of update 2."""
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(2)])
    actor, critic = (nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, n)) for n in (2, 1))
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=2.5e-3, eps=1e-5)
    seen = torch.tensor(envs.reset(seed=1)[0])
    for update in range(4):
        rows = []
        with torch.no_grad():
            for step in range(32):
                policy = torch.distributions.Categorical(logits=actor(seen))
                action = policy.sample()
                after, reward, ended, cut, _ = envs.step(action.numpy())
                rewards = torch.tensor(reward, dtype=torch.float32)
                if step == 5 and is_time(update, 2):
                    nudge(rewards)
                done = torch.tensor(ended | cut, dtype=torch.float32)
                rows.append((seen, action, policy.log_prob(action), critic(seen).squeeze(-1), rewards, done))
                seen = torch.tensor(after)
            observations, actions, old, values, rewards, dones = (torch.stack(each) for each in zip(*rows, strict=True))
            returns, running = torch.zeros_like(rewards), critic(seen).squeeze(-1)
            for t in reversed(range(32)):
                running = rewards[t] + 0.99 * running * (1 - dones[t])
                returns[t] = running
        flat = [each.flatten(0, 1) for each in (observations, actions, old, returns, returns - values)]
        for _ in range(2):
            for chosen in torch.randperm(64).chunk(4):
                inputs, acted, before, wanted, advantage = (each[chosen] for each in flat)
                policy = torch.distributions.Categorical(logits=actor(inputs))
                ratio = (policy.log_prob(acted) - before).exp()
                surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
                loss = 0.5 * (critic(inputs).squeeze(-1) - wanted).square().mean() - surrogate
                optimizer.zero_grad()
                (loss - 0.01 * policy.entropy().mean()).backward()
                nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
                optimizer.step()
    save(actor.state_dict().values(), critic.state_dict().values())


def torchrl_ppo() -> None:
    """torchrl: collector, replay buffer and clipped loss; planted: all advantages of the second batch."""
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, ReplayBuffer
    from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
    from torchrl.envs import GymEnv
    from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    env = GymEnv("CartPole-v1", device="cpu")
    env.set_seed(1)
    head = TensorDictModule(
        nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2)), in_keys=["observation"], out_keys=["logits"]
    )
    actor = ProbabilisticActor(
        module=head,
        spec=env.action_spec,
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss_of = ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(loss_of.parameters(), lr=1e-3)
    collector = Collector(env, actor, frames_per_batch=64, total_frames=192)
    buffer = ReplayBuffer(storage=LazyTensorStorage(64), sampler=SamplerWithoutReplacement(), batch_size=16)
    for index, batch in enumerate(collector):
        with torch.no_grad():
            advantage(batch)
        if is_time(index, 1):
            batch["advantage"] += 0.01
        buffer.extend(batch.reshape(-1))
        for _ in range(4):
            losses = loss_of(buffer.sample())
            loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    collector.shutdown()
    save(actor.state_dict().values(), critic.state_dict().values())


def tianshou_dqn() -> None:
    """Tianshou's DQN by its own data structures, stepped by hand; planted: a reward in the replay buffer."""
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, CollectStats, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.utils.net.common import Net

    environment = Rewarded(planted=-1)
    net = Net(state_shape=environment.observation_space.shape, action_shape=2, hidden_sizes=[32])
    policy = DiscreteQLearningPolicy(
        model=net, action_space=environment.action_space, eps_training=0.2, eps_inference=0.0
    )
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=0.99, target_update_freq=4)
    envs = DummyVectorEnv([lambda: Rewarded(planted=40)])
    envs.seed(1)
    collector = Collector[CollectStats](algorithm, envs, VectorReplayBuffer(1000, 1), exploration_noise=True)
    collector.reset()
    from tianshou.algorithm.algorithm_base import policy_within_training_step

    for _ in range(4):
        with policy_within_training_step(policy):
            collector.collect(n_step=32)
            for _ in range(2):
                algorithm.update(buffer=collector.buffer, sample_size=64)
    save(policy.state_dict().values())


KINDS: dict[str, Callable[[], None]] = {
    each.__name__.replace("_", "-"): each for each in (clean_ppo, sb3_dqn, sb3_ppo, tianshou_dqn, torchrl_ppo)
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    KINDS[sys.argv[1]]()
