"""GRPO whole, in the library's own parts: a policy, the old policy that samples, a frozen reference.

python examples/loop.py [MODEL] [STEPS]
"""

import sys
from dataclasses import replace

import torch

from muster import pretrained
from muster.algo.advantages import zscore
from muster.algo.recipes import GRPO, loss
from muster.batch import Row, collate, count_totals
from muster.engines.base import Sampling
from muster.engines.local import LocalEngine
from muster.policy import Policy
from muster.records import Prompt, StreamKey
from muster.update import tokens_of

QUESTIONS = [
    ("What is the capital of France?", "Paris"),
    ("What is 3 + 4?", "7"),
    ("Name a primary color.", "red"),
]


def main(path: str = "smollm2-135m-instruct", num_steps: int = 20) -> list[float]:
    """Trains on three questions and returns the mean reward of each step."""
    tokenizer = pretrained.load_tokenizer(path)
    policy = Policy(pretrained.load_model(path, dtype=torch.float32), tokenizer, max_tokens=512)
    reference, engine = policy.snapshot(), LocalEngine(policy)
    optimizer = torch.optim.AdamW([param for _, param in policy.trainable()], lr=1e-5)
    sampling = Sampling(group_size=4, max_tokens=24, stop_ids=pretrained.stop_ids(policy.base, tokenizer))
    old, history = reference, []
    for step in range(1, num_steps + 1):
        if step % 10 == 1:  # the policy that samples lags behind the one that learns
            old = policy.snapshot()
            engine.load_weights(old.items(), version=step)
        chats = [[{"role": "user", "content": question}] for question, _ in QUESTIONS]
        texts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
        encoded = tokenizer([str(text) for text in texts], add_special_tokens=False)["input_ids"]
        prompts = [Prompt(ids=tuple(ids), key=StreamKey(0, step, n, 0)) for n, ids in enumerate(encoded)]
        groups = engine.generate(prompts, sampling)
        answers = [answer for _, answer in QUESTIONS]
        rewards = torch.tensor(
            [
                [float(a in tokenizer.decode(list(c.ids))) for c in g]
                for a, g in zip(answers, groups, strict=True)
            ]
        )
        advantages = zscore(rewards)  # [P G]: better than the rest of its group, or worse
        rows = [
            Row(n, completion, float(advantages[n, i]))
            for n, group in enumerate(groups)
            for i, completion in enumerate(group)
        ]
        batch = collate([prompt.ids for prompt in prompts], rows)
        with torch.no_grad(), policy.using(old):
            old_logprobs = policy.score(batch, temperature=1.0).logprobs
        with torch.no_grad(), policy.using(reference):
            ref_logprobs = policy.score(batch, temperature=1.0).logprobs
        batch = replace(batch, old_logprobs=old_logprobs, ref_logprobs=ref_logprobs)
        tokens = tokens_of(batch, policy.score(batch, temperature=1.0))
        loss(tokens, GRPO, count_totals(batch, 0, 0, limit=24), kl_coef=0.01).backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(float(rewards.mean()))
    return history


if __name__ == "__main__":
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct"
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    for number, reward in enumerate(main(model, steps), start=1):
        print(f"step {number}: reward {reward:.2f}")
