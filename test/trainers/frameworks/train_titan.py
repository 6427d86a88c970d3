#!/usr/bin/env python3
"""Saves with torchtitan's CheckpointManager in OUTPUT_DIR/checkpoint/step-N, two gloo ranks. The model is ours, all else is torchtitan's."""

import logging

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchtitan.components.checkpointer.dcp import CheckpointManager
from torchtitan.components.optimizer.lr_scheduler import LRSchedulersContainer
from torchtitan.components.optimizer.optimizer import OptimizersContainer, ParamGroupConfig

import common

KINDS = {
    "sync": "async_mode disabled; a last save one step after --steps, which has the model only",
    "async": "async_mode async",
}


class Progress:
    """What torchtitan's own trainer saves as train_state."""

    def __init__(self):
        self.step = self.ntokens_seen = 0

    def state_dict(self):
        return {"step": torch.tensor(self.step), "ntokens_seen": torch.tensor(self.ntokens_seen)}

    def load_state_dict(self, state):
        self.step, self.ntokens_seen = int(state["step"]), int(state["ntokens_seen"])


class Loader:
    """A data loader as torchtitan saves it: a blob per data parallel rank."""

    def __init__(self, rank, progress):
        self.rank, self.progress = rank, progress

    def state_dict(self):
        return {f"dp_rank_{self.rank}": f"position {self.progress.step}".encode(), "world_size": dist.get_world_size()}

    def load_state_dict(self, state):
        self.position = state[f"dp_rank_{self.rank}"]


def main():
    options = common.options(__doc__ + " --from is OUTPUT_DIR.", KINDS)
    logging.disable(logging.WARNING)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    common.torch_setup(options.what)
    model = common.torch_model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    group = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.01})
    optimizers = OptimizersContainer(OptimizersContainer.Config(param_groups=[group], implementation="for-loop"), model_parts=[model])
    schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(optimizers=optimizers, training_steps=10)
    progress = Progress()
    manager = CheckpointManager(
        CheckpointManager.Config(enable=True, interval=options.every, async_mode="async" if options.kind == "async" else "disabled"),
        dataloader=Loader(rank, progress),
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=schedulers,
        states={"train_state": progress},
        sd_adapter=None,
        base_folder=options.source if options.what == "load" else options.output_dir,
    )

    def train():
        progress.step += 1
        progress.ntokens_seen += 64
        return common.torch_step(model, optimizers, schedulers, progress.step, rank)

    def state():
        parts = {"model": model.state_dict(), "optimizer": optimizers.state_dict(), "scheduler": schedulers.state_dict()}
        return common.digest({**parts, "train": progress.state_dict()})

    if options.what == "save":
        for _ in range(options.steps):
            train()
            manager.save(progress.step)
        found = state()
        if options.kind == "sync":
            train()
            manager.save(progress.step, last_step=True)
    else:
        # The last save has the model only: asked for the latest, torchtitan takes that, and fails for want of the optimizer.
        if not manager.load(options.steps):
            raise SystemExit("torchtitan found no checkpoint")
        found = state()
    manager.maybe_wait_for_saving()
    manager.close()
    common.write_states(options.states, found, [], rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
