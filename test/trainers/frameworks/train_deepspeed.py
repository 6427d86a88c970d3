#!/usr/bin/env python3
"""Saves with DeepSpeed's own engine.save_checkpoint in OUTPUT_DIR/global_stepN, two gloo ranks, and loads with load_checkpoint."""

import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ.setdefault("TORCH_EXTENSIONS_DIR", os.path.join(sys.prefix, "torch_extensions"))

import deepspeed
import torch

import common

KINDS = {
    "plain": "no ZeRO",
    "zero1": "ZeRO stage 1",
    "zero2": "ZeRO stage 2, bfloat16: names begin with bf16_",
    "zero3": "ZeRO stage 3",
    "pipeline": "a pipeline of two stages",
    "moe": "a mixture of two experts, one per rank",
}


def settings(kind):
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3, "warmup_max_lr": 0.01}},
    }
    if kind.startswith("zero"):
        config |= {"zero_optimization": {"stage": int(kind[4:])}, "zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True}
    if kind == "zero2":
        config["bf16"] = {"enabled": True}
    return config


def make(kind):
    """Returns the engine and a function that trains one step."""
    if kind == "pipeline":
        from deepspeed.pipe import LayerSpec, PipelineModule

        layers = [LayerSpec(torch.nn.Linear, 8, 16), LayerSpec(torch.nn.Tanh), LayerSpec(torch.nn.Linear, 16, 4)]
        net = PipelineModule(layers=layers, num_stages=2, loss_fn=torch.nn.functional.mse_loss, partition_method="uniform")
        engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=settings(kind))
        return engine, lambda step: engine.train_batch(iter([common.torch_batch(step)])).item().hex()
    net = common.torch_model()
    if kind == "moe":
        from deepspeed.moe.layer import MoE
        from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

        class Mixture(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.into, self.out = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
                self.moe = MoE(8, torch.nn.Linear(8, 8), num_experts=2, ep_size=2, k=1, use_rts=False)

            def forward(self, x):
                return self.out(self.moe(self.into(x))[0])

        net = Mixture()
        groups = split_params_into_different_moe_groups_for_optimizer({"params": list(net.parameters()), "name": "all"})
        engine, *_ = deepspeed.initialize(model=net, model_parameters=groups, config=settings(kind))
    else:
        engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=settings(kind))
    rank = torch.distributed.get_rank()

    def train(step):
        x, y = common.torch_batch(step, rank)
        kind_of = next(engine.module.parameters()).dtype
        loss = ((engine(x.to(kind_of)) - y) ** 2).mean()
        engine.backward(loss)
        engine.step()
        return loss.item().hex()

    return engine, train


def main():
    options = common.options(__doc__ + " --from is OUTPUT_DIR.", KINDS)
    deepspeed.init_distributed("gloo")
    deepspeed.utils.logger.setLevel("ERROR")
    common.torch_setup(options.what)
    engine, train = make(options.kind)
    if options.what == "save":
        for step in range(1, options.steps + 1):
            train(step)
            if step % options.every == 0:
                engine.save_checkpoint(options.output_dir, client_state={"step": step, "rng": torch.get_rng_state()})
    else:
        path, client = engine.load_checkpoint(options.source)
        if path is None:
            raise SystemExit("DeepSpeed found no checkpoint")
        step = client["step"]
        torch.set_rng_state(client["rng"])
    found = common.digest({"model": engine.module.state_dict(), "steps": engine.global_steps, "lr": engine.get_lr(), "optimizer": engine.optimizer.state_dict()})
    losses = [train(step + i) for i in range(1, options.more + 1)]
    common.write_states(options.states, found, losses, torch.distributed.get_rank())
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
