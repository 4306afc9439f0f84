"""A whole run of TRL that takes one step each time it is told to.

`worker_trl.py JOB FOLDER`, in the environment of the measurements.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl.trainer.grpo_trainer import GRPOTrainer

from judging import of_text
from talking import Line, Reply
from trl_side import trainer_of
from workloads import Job, read_job, read_prompts


class OneAtATime(TrainerCallback):
    """Waits before every step until it is told to take it, and answers with what it took."""

    def __init__(self, line: Line, job: Job) -> None:
        self._asked = line.asked()
        self._line = line
        self._job = job
        self._start = 0.0
        self.trainer: GRPOTrainer | None = None
        """Set once there is one: it is made with its callbacks."""

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Waits for the next question, and ends the process where there is none any more."""
        if next(self._asked, None) is None:
            sys.exit(0)
        self._start = time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Answers; a held-out evaluation that is due comes after the clock has stopped."""
        seconds = time.perf_counter() - self._start
        assert self.trainer is not None
        reply: Reply = {"step": state.global_step, "seconds": seconds, **token_counts(self.trainer)}
        if self._job.eval_every and state.global_step % self._job.eval_every == 0:
            start = time.perf_counter()
            reply["eval_reward"] = held_out_reward(self.trainer, self._job)
            reply["eval_s"] = time.perf_counter() - start
        self._line.reply(reply)


def token_counts(trainer: GRPOTrainer) -> Reply:
    """Tokens of the prompts and completions that the step was about, as TRL holds them."""
    batches = getattr(trainer, "_buffered_inputs")  # noqa: B009  # private to TRL
    return {
        f"{what}_tokens": [int(n) for batch in batches for n in batch[f"{what}_mask"].sum(dim=1)]
        for what in ("prompt", "completion")
    }


def held_out_reward(trainer: GRPOTrainer, job: Job) -> float:
    """Mean reward of one completion for each held-out prompt, sampled as in training."""
    assert job.held_out is not None
    prompts = read_prompts(Path(job.held_out))[: job.eval_prompts]
    # Typed by TRL as many things that have no chat template, too.
    tokenizer: Any = trainer.processing_class
    model: Any = trainer.model
    chats = [[{"role": "user", "content": text}] for text in prompts]
    rendered = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer(
        rendered, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False
    )
    assert inputs["attention_mask"][:, -1].all(), "a completion has to follow its prompt, not padding"
    model.eval()
    with torch.no_grad():
        ids = model.generate(**inputs, generation_config=trainer.generation_config)
    model.train()
    texts = tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    rewards = [of_text(job.reward, text, prompt) for text, prompt in zip(texts, prompts, strict=True)]
    scored = [reward for reward in rewards if reward is not None]
    return sum(scored) / len(scored)


def main(job_path: str, folder: str) -> None:
    """Trains, step by step, until the other end is closed."""
    line, job = Line(), read_job(job_path)
    callback = OneAtATime(line, job)
    trainer = trainer_of(job, Path(folder))
    callback.trainer = trainer
    trainer.add_callback(callback)
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
