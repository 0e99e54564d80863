# SPDX-License-Identifier: Apache-2.0
"""Policy gradients on CartPole."""
import argparse

import gymnasium as gym
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions import Categorical

parser = argparse.ArgumentParser(description="REINFORCE")
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--seed", type=int, default=543)
parser.add_argument("--render", type=bool, default=False, help="show it")  # expect: XL001
parser.add_argument("--log-interval", default=10)  # expect: XL003
args = parser.parse_args()

env = gym.make("CartPole-v1", render_mode="human" if args.render else None)
env.reset(seed=args.seed)
torch.manual_seed(args.seed)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 128)
        self.dropout = nn.Dropout(p=0.6)
        self.affine2 = nn.Linear(128, 2)

    def forward(self, x):
        x = torch.relu(self.dropout(self.affine1(x)))
        return torch.softmax(self.affine2(x), dim=1)


policy = Policy()
optimizer = optim.Adam(policy.parameters(), lr=1e-2)


def select_action(state):
    probs = policy(torch.from_numpy(state).float().unsqueeze(0))
    m = Categorical(probs)
    action = m.sample()
    return action.item(), m.log_prob(action)


def finish_episode(log_probs, rewards):
    R, returns = 0.0, []
    for r in rewards[::-1]:
        R = r + args.gamma * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-8)
    loss = torch.cat([-p * r for p, r in zip(log_probs, returns)]).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


running = 10.0
for episode in range(1000):
    state, _ = env.reset()
    log_probs, rewards = [], []
    for _ in range(10000):
        action, log_prob = select_action(state)
        state, reward, done, truncated, _ = env.step(action)
        log_probs.append(log_prob)
        rewards.append(reward)
        if done or truncated:
            break
    running = 0.05 * sum(rewards) + 0.95 * running
    finish_episode(log_probs, rewards)
    if episode % args.log_interval == 0:
        print(f"Episode {episode}\tAverage reward: {running:.2f}")
    if running > env.spec.reward_threshold:
        break
