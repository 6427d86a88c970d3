#!/usr/bin/env python3
"""Trains a tiny GPT-2 with TRL's SFTTrainer or GRPOTrainer: OUTPUT_DIR/checkpoint-N. Model and tokenizer are made here, not fetched."""

import os

import common

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

KINDS = {"sft": "SFTTrainer", "grpo": "GRPOTrainer, with adaptive entropy"}
WORDS = ["<pad>", "<eos>", "<unk>", *"abcdefgh"]


def parts():
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", model_max_length=16)
    config = GPT2Config(vocab_size=len(WORDS), n_positions=16, n_embd=4, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1, pad_token_id=0)
    return GPT2LMHeadModel(config), tokenizer


def main():
    options = common.options(__doc__, KINDS)
    common.torch_setup(options.what)
    model, tokenizer = parts()
    shared = dict(
        output_dir=options.output_dir, max_steps=options.steps, save_steps=options.every, use_cpu=True, bf16=False, report_to="none",
        per_device_train_batch_size=2, disable_tqdm=True, logging_steps=1, gradient_checkpointing=False, dataloader_pin_memory=False,
    )
    if options.kind == "sft":
        from trl import SFTConfig, SFTTrainer

        rows = Dataset.from_list([{"text": "a b c d e"}, {"text": "b c d e f"}] * 8)
        trainer = SFTTrainer(model=model, args=SFTConfig(max_length=8, **shared), train_dataset=rows, processing_class=tokenizer)
    else:
        from trl import GRPOConfig, GRPOTrainer

        def reward(completions, **_):
            return [float(len(c)) for c in completions]

        rows = Dataset.from_list([{"prompt": "a b"}, {"prompt": "c d"}] * 8)
        config = GRPOConfig(num_generations=2, max_completion_length=4, use_adaptive_entropy=True, **shared)
        trainer = GRPOTrainer(model=model, reward_funcs=reward, args=config, train_dataset=rows, processing_class=tokenizer)
    trainer.train(resume_from_checkpoint=options.source)


if __name__ == "__main__":
    main()
