#!/usr/bin/env python3
"""Saves with Accelerate's save_state, automatically named OUTPUT_DIR/checkpoints/checkpoint_N, and loads with load_state."""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch.utils.data import DataLoader, Dataset

import common

KINDS = {"plain": "safetensors", "bin": "safe_serialization=False"}


class Batches(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        x, y = common.torch_batch(i)
        return x[0], y[0]


class Progress:
    """Something of the user's own, which Accelerate saves as custom_checkpoint_0.pkl."""

    step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


def main():
    options = common.options(__doc__, KINDS)
    common.torch_setup(options.what)
    config = ProjectConfiguration(project_dir=options.output_dir, automatic_checkpoint_naming=True, total_limit=3)
    accelerator = Accelerator(cpu=True, project_config=config)
    model = common.torch_model()
    optimizer, scheduler = common.torch_optimizer(model)
    loader = DataLoader(Batches(), batch_size=2, shuffle=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)

    def train():
        progress.step += 1
        return common.torch_step(model, optimizer, scheduler, progress.step, accelerator.process_index)

    if options.what == "save":
        for _ in range(options.steps):
            train()
            if progress.step % options.every == 0:
                accelerator.save_state(safe_serialization=options.kind != "bin")
    else:
        accelerator.load_state(options.source)
    state = {
        "model": accelerator.unwrap_model(model).state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "progress": progress.state_dict(),
        "rng": torch.get_rng_state(),
    }
    found = common.digest(state)
    losses = [train() for _ in range(options.more)]
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    common.write_states(options.states, found, losses, accelerator.process_index if several else None)
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
