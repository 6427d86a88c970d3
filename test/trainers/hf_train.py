#!/usr/bin/env python3
"""Trains a tiny GPT-2 with the Hugging Face Trainer on a CPU, so that real checkpoints are written, killed in mid-save and resumed.

A run is deterministic: the losses of one resumed from checkpoint-N equal those of an uninterrupted one, bit for bit. Dropout is on, so
that this also needs the state of the random generators. Nothing is fetched from a hub.

Lines on standard output, flushed (rank 0 only): "SAVING <step>" when a save begins, "SAVED <step>" when it has returned, "DONE <step>".
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from accelerate.utils import DistributedType
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.utils import logging


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", required=True, help="checkpoints go to OUTPUT_DIR/checkpoint-N")
    parser.add_argument("--max-steps", type=int, default=20, help="also sets the learning rate schedule: give the same when resuming")
    parser.add_argument("--save-steps", type=int, default=5)
    parser.add_argument("--save-total-limit", type=int, help="rotate: keep only so many checkpoints")
    parser.add_argument("--save-only-model", action="store_true", help="no optimizer, scheduler and random state")
    parser.add_argument("--resume-from", default="", metavar="CHECKPOINT", help='a checkpoint-N directory; "last": whichever the Trainer itself finds in OUTPUT_DIR; empty: start from the beginning')
    parser.add_argument("--losses", metavar="FILE", help='append one line {"step": n, "loss": x} per step')
    parser.add_argument("--slow-save", type=float, default=0, metavar="SECONDS", help="make a save take about so long, with torn files on the way")
    parser.add_argument("--step-delay", type=float, default=0, metavar="SECONDS", help="wait after each step")
    parser.add_argument("--jit-checkpoint", action="store_true", help="save on SIGTERM (the Trainer's just-in-time checkpoint) and stop")
    parser.add_argument("--peft", action="store_true", help="train a LoRA adapter")
    parser.add_argument("--shards", metavar="SIZE", help='split the weights into files of at most SIZE, such as "8KB"')
    parser.add_argument("--bin", action="store_true", help="write the weights as pytorch_model.bin, as older Trainers did, with torch.save")
    parser.add_argument("--legacy", action="store_true", help="write every torch.save in the format from before the zip one")
    parser.add_argument("--fsdp", choices=["sharded", "full"], help="shard the model over the ranks; how its state is saved")
    parser.add_argument("--deepspeed", type=int, choices=[1, 2, 3], metavar="STAGE", help="train with this ZeRO stage of DeepSpeed")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args(argv)


class Tokens(Dataset):
    """A fixed set of short token sequences which a model can learn something from: each continues with a stride of its own."""

    vocabulary, length, size = 64, 16, 40

    def __init__(self):
        generator = torch.Generator().manual_seed(20)
        start = torch.randint(self.vocabulary, (self.size, 1), generator=generator)
        stride = torch.randint(1, 5, (self.size, 1), generator=generator)
        self.tokens = (start + stride * torch.arange(self.length)) % self.vocabulary

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        return {"input_ids": self.tokens[i], "labels": self.tokens[i]}


def make_model(options):
    set_seed(options.seed)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=Tokens.vocabulary,
            n_positions=Tokens.length,
            n_embd=options.hidden,
            n_layer=options.layers,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
            resid_pdrop=0.1,
            embd_pdrop=0.1,
            attn_pdrop=0.1,
            use_cache=False,
            attn_implementation="eager",
        )
    )
    if options.peft:
        from peft import LoraConfig, TaskType, get_peft_model

        config = LoraConfig(task_type=TaskType.CAUSAL_LM, r=2, lora_alpha=4, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True)
        model = get_peft_model(model, config)
    return model


def training_arguments(options):
    more = {}
    if options.fsdp:
        kind = {"sharded": "SHARDED_STATE_DICT", "full": "FULL_STATE_DICT"}[options.fsdp]
        more = {
            "fsdp": True,
            "fsdp_config": {
                "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "transformer_layer_cls_to_wrap": ["GPT2Block"],
                "state_dict_type": kind,
            },
        }
    if options.deepspeed:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        # The one kernel that DeepSpeed compiles for a CPU belongs to this environment, not to the person's home.
        os.environ.setdefault("TORCH_EXTENSIONS_DIR", os.path.join(sys.prefix, "torch_extensions"))
        more = {
            "deepspeed": {
                "zero_optimization": {"stage": options.deepspeed},
                "train_micro_batch_size_per_gpu": "auto",
                "zero_allow_untested_optimizer": True,
                "zero_force_ds_cpu_optimizer": False,
            }
        }
    return TrainingArguments(
        output_dir=options.output_dir,
        max_steps=options.max_steps,
        per_device_train_batch_size=4,
        learning_rate=3e-3,
        weight_decay=0.01,
        lr_scheduler_type="linear",
        warmup_steps=2,
        optim="adamw_torch",
        logging_steps=1,
        save_strategy="steps",
        save_steps=options.save_steps,
        save_total_limit=options.save_total_limit,
        save_only_model=options.save_only_model,
        enable_jit_checkpoint=options.jit_checkpoint,
        seed=options.seed,
        use_cpu=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        report_to="none",
        **more,
    )


class Saver:
    """Changes how files of a checkpoint are written: format, names, pace."""

    def __init__(self, options):
        self.options = options
        self.saving = False
        # A plain save has ten pauses: after the weights, before and amid each of four files of torch.save, before trainer_state.json.
        self.pause_seconds = options.slow_save / (4 if options.save_only_model else 10)
        self.torch_save = torch.save
        torch.save = self.save

    def pause(self):
        if self.saving and self.pause_seconds:
            time.sleep(self.pause_seconds)

    def save(self, value, target, *args, **kwargs):
        """Stands in for torch.save."""
        if self.options.legacy:
            kwargs["_use_new_zipfile_serialization"] = False
        if not (self.saving and self.pause_seconds) or not isinstance(target, (str, os.PathLike)):
            return self.torch_save(value, target, *args, **kwargs)
        self.pause()
        with tempfile.TemporaryDirectory() as directory:
            # The same base name, because the file holds it.
            whole = os.path.join(directory, os.path.basename(target))
            self.torch_save(value, whole, *args, **kwargs)
            with open(whole, "rb") as file:
                data = file.read()
        with open(target, "wb") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            self.pause()
            file.write(data[len(data) // 2 :])

    def wrap_model(self, model):
        """Makes the save_pretrained of this model obey the options."""
        save_pretrained = model.save_pretrained

        def save(directory, *args, **kwargs):
            if self.options.shards:
                kwargs["max_shard_size"] = self.options.shards
            if self.options.bin:
                os.makedirs(directory, exist_ok=True)
                model.config.save_pretrained(directory)
                model.generation_config.save_pretrained(directory)
                torch.save(kwargs.get("state_dict") or model.state_dict(), os.path.join(directory, "pytorch_model.bin"))
            else:
                save_pretrained(directory, *args, **kwargs)
            self.pause()

        model.save_pretrained = save


class TinyTrainer(Trainer):
    """The Trainer, unchanged but for a note of each loss and the pauses of a slow save."""

    def __init__(self, *args, saver, **kwargs):
        super().__init__(*args, **kwargs)
        self.saver = saver
        self.saver.wrap_model(self.model)
        self.last_loss = None

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.last_loss = loss.item()
        return loss

    def _save_checkpoint(self, *args, **kwargs):
        step = self.state.global_step
        if self.args.should_save:
            print(f"SAVING {step}", flush=True)
        self.saver.saving = True
        save_to_json = self.state.save_to_json

        def slowly(path):
            self.saver.pause()
            save_to_json(path)

        self.state.save_to_json = slowly
        try:
            super()._save_checkpoint(*args, **kwargs)
        finally:
            del self.state.save_to_json
            self.saver.saving = False
        if self.args.should_save:
            print(f"SAVED {step}", flush=True)


class Steps(TrainerCallback):
    """Writes the losses and keeps the pace."""

    def __init__(self, trainer, losses, delay):
        self.trainer, self.losses, self.delay = trainer, losses, delay

    def on_step_end(self, args, state, control, **kwargs):
        if self.losses and state.is_world_process_zero:
            self.losses.write(json.dumps({"step": state.global_step, "loss": self.trainer.last_loss}) + "\n")
            self.losses.flush()
        if self.delay:
            time.sleep(self.delay)


def main(argv):
    options = parse_arguments(argv)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    arguments = training_arguments(options)
    if options.fsdp:
        # Accelerate takes FSDP only on an accelerator; torch itself shards on a CPU just as well.
        arguments.distributed_state._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    trainer = TinyTrainer(
        model=make_model(options),
        args=arguments,
        train_dataset=Tokens(),
        saver=Saver(options),
    )
    with contextlib.ExitStack() as stack:
        losses = stack.enter_context(open(options.losses, "a", encoding="utf-8")) if options.losses else None
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Steps(trainer, losses, options.step_delay))
        trainer.train(resume_from_checkpoint=True if options.resume_from == "last" else options.resume_from or None)
    if trainer.args.should_save:
        print(f"DONE {trainer.state.global_step}", flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
