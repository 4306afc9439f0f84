"""Scripts of TRL and Unsloth as their users write them."""

GUIDE = """
import torch
from unsloth import FastLanguageModel
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
from my_rewards import length_reward as long_enough

max_seq_length = 4096
lora_rank = 32
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="HuggingFaceTB/SmolLM2-135M-Instruct",
    max_seq_length=max_seq_length,
    load_in_4bit=True,
    fast_inference=True,
    gpu_memory_utilization=0.6,
)
model = FastLanguageModel.get_peft_model(
    model,
    r=lora_rank,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    lora_alpha=lora_rank,
    use_gradient_checkpointing="unsloth",
    random_state=3407,
)
dataset = load_dataset("csv", data_files="prompts.csv", split="train")

def json_reward(prompts, completions, **kwargs):
    raise SystemExit("a script is not run")

args = GRPOConfig(
    learning_rate=5e-6, adam_beta1=0.9, adam_beta2=0.99, weight_decay=0.1, warmup_ratio=0.1,
    lr_scheduler_type="cosine", optim="paged_adamw_8bit", logging_steps=1,
    per_device_train_batch_size=1, gradient_accumulation_steps=16, num_generations=16,
    max_prompt_length=max_seq_length - 512, max_completion_length=512,
    max_steps=100, save_steps=50, max_grad_norm=0.1, report_to="none", output_dir="outputs",
    bf16=torch.cuda.is_bf16_supported(), repetition_penalty=1.1,
)
trainer = GRPOTrainer(
    model=model, processing_class=tokenizer, reward_funcs=[json_reward, long_enough], args=args,
    train_dataset=dataset,
)
trainer.train()
raise SystemExit("a script is not run")
"""
"""The script of a practical guide, with Unsloth in front of TRL."""
