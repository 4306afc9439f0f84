"""TRL set up from a job: the same data, reward, formula and hyper-parameters.

What differs from TRL's defaults differs because the job says so: no bfloat16, gradient checkpointing only
where it is measured, the `grpo` loss instead of `dapo`, plain k3, no shuffling. TRL keeps the adapter of a
quantised base in bfloat16 by itself.
"""

import json
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from judging import as_batch
from muster.schedule import factor
from workloads import LORA_TARGETS, ROWS_AT_ONCE, Job

MAX_STEPS = 10_000


def trainer_of(job: Job, folder: Path) -> GRPOTrainer:
    """TRL's trainer for the job, its learning rate by Muster's schedule."""
    torch.set_num_threads(job.threads)
    rows = [json.loads(line)["prompt"] for line in Path(job.data).read_text(encoding="utf-8").splitlines()]
    chats = [[{"role": "user", "content": text}] for text in rows]
    lora = LoraConfig(
        r=max(job.lora_rank, 1),
        lora_alpha=job.lora_rank,
        target_modules=list(LORA_TARGETS),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(
            job.model, dtype=torch.float32, quantization_config=_quantization(job)
        ),
        reward_funcs=as_batch(job.reward),
        args=_settings(job, folder),
        train_dataset=Dataset.from_dict({"prompt": chats}),
        processing_class=AutoTokenizer.from_pretrained(job.model),
        peft_config=lora if job.lora_rank else None,
    )
    trainer.lr_scheduler = LambdaLR(
        trainer.create_optimizer(),
        lambda update: factor(update, num_updates=MAX_STEPS, warmup=job.warmup_steps, shape="constant"),
    )
    return trainer


def _quantization(job: Job) -> BitsAndBytesConfig | None:
    """As Muster quantises: 4-bit normal floats, their scales in 8 bits, computed with in float32."""
    if job.quantize is None:
        return None
    assert job.quantize == "nf4", f"{job.quantize} is not set up here"
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )


def _settings(job: Job, folder: Path) -> GRPOConfig:
    at_once = min(ROWS_AT_ONCE, job.rows)
    return GRPOConfig(
        output_dir=str(folder / f"trl-{job.name}"),
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=job.rows // at_once,
        num_generations=job.group_size,
        max_completion_length=job.new_tokens,
        # Bars the end token until there are as many tokens as there may be.
        generation_kwargs={"min_new_tokens": job.new_tokens} if job.fixed_length else None,
        max_steps=MAX_STEPS,
        temperature=1.0,
        loss_type="grpo",
        epsilon=0.2,
        scale_rewards="group",
        beta=job.kl_coef,
        use_bias_correction_kl=False,
        num_iterations=1,
        shuffle_dataset=False,
        learning_rate=job.lr,
        adam_beta1=job.beta1,
        adam_beta2=job.beta2,
        weight_decay=0.0,
        max_grad_norm=1.0,
        gradient_checkpointing=job.gradient_checkpointing,
        optim="adamw_torch_fused" if job.optimizer == "adamw" else job.optimizer,
        bf16=False,
        use_cpu=True,
        seed=job.seed,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
