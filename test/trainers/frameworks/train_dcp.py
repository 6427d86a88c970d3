#!/usr/bin/env python3
"""Writes and reads torch distributed checkpoints (DCP) of a tiny model, in OUTPUT_DIR/PREFIXn. Run it with torch.distributed.run on 2 ranks."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import common

KINDS = {
    "fsdp2": "fully_shard, dcp.save",
    "async": "fully_shard, dcp.async_save",
    "ranks": "fully_shard, dcp.save(use_collectives=False): metadata per rank",
    "ddp": "every rank has it all, dcp.save",
    "hf": "fully_shard, the weights alone by HuggingFaceStorageWriter, not consolidated",
    "hf-consolidated": "fully_shard, the weights alone by HuggingFaceStorageWriter, consolidated",
}


def state_of(model, optimizer, scheduler, step, rank):
    """The state as DCP takes it. Each rank's generator has a key of its own."""
    weights, moments = get_state_dict(model, optimizer)
    return {
        "model": weights,
        "optimizer": moments,
        "lr_scheduler": scheduler.state_dict(),
        "train_state": {"step": step},
        f"rng_{rank}": torch.get_rng_state(),
    }


def save(options, state, directory):
    if options.kind == "async":
        dcp.async_save(state, checkpoint_id=directory).result()
    elif options.kind == "ranks":
        dcp.save(state, checkpoint_id=directory, use_collectives=False)
    elif options.kind.startswith("hf"):
        consolidate = options.kind == "hf-consolidated"
        writer = dcp.HuggingFaceStorageWriter(path=directory, save_distributed=True, enable_consolidation=consolidate)
        dcp.save(state["model"], storage_writer=writer)
    else:
        dcp.save(state, checkpoint_id=directory)


def main():
    options = common.options(__doc__, KINDS, prefix="step-")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    common.torch_setup(options.what)
    model = common.torch_model()
    if options.kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (model[0], model[3]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer, scheduler = common.torch_optimizer(model)
    if options.what == "save":
        for step in range(1, options.steps + 1):
            common.torch_step(model, optimizer, scheduler, step, rank)
            if step % options.every == 0:
                state = state_of(model, optimizer, scheduler, step, rank)
                save(options, state, os.path.join(options.output_dir, f"{options.prefix}{step}"))
    else:
        state = state_of(model, optimizer, scheduler, 0, rank)
        dcp.load(state, checkpoint_id=options.source)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        scheduler.load_state_dict(state["lr_scheduler"])
        step = state["train_state"]["step"]
        torch.set_rng_state(state[f"rng_{rank}"])
    found = common.digest(state_of(model, optimizer, scheduler, step, rank))
    losses = [common.torch_step(model, optimizer, scheduler, step + i, rank) for i in range(1, options.more + 1)]
    common.write_states(options.states, found, losses, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
