"""Stable-Baselines3's PPO on CartPole, with a checkpoint after every rollout."""

import argparse
from pathlib import Path

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--vec-env", default="dummy", choices=["dummy", "subproc"])
parser.add_argument("--threads", type=int, default=1)
args = parser.parse_args()


def main():
    torch.set_num_threads(args.threads)
    kinds = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}
    envs = make_vec_env("CartPole-v1", n_envs=2, seed=args.seed, vec_env_cls=kinds[args.vec_env])
    total = 96
    if args.resume:
        newest = max(Path("checkpoints").glob("ppo_*_steps.zip"), key=lambda path: int(path.stem.split("_")[1]))
        agent = PPO.load(newest, env=envs)
        total -= agent.num_timesteps
    else:
        agent = PPO(
            "MlpPolicy",
            envs,
            learning_rate=args.lr,
            n_steps=16,
            batch_size=16,
            n_epochs=2,
            seed=args.seed,
            device="cpu",
            verbose=1,
        )
    saving = CheckpointCallback(save_freq=16, save_path="checkpoints", name_prefix="ppo")
    agent.learn(total, callback=saving, reset_num_timesteps=not args.resume)
    agent.save("ppo_cartpole")
    envs.close()


if __name__ == "__main__":
    main()
