#!/usr/bin/env python3
"""Trains with Lightning and its ModelCheckpoint in OUTPUT_DIR, a step per epoch, and resumes with fit(ckpt_path=...)."""

import logging
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset

import common

KINDS = {
    "copy": "save_last=True: last.ckpt is a copy",
    "link": 'save_last="link": last.ckpt is a link',
    "weights": "save_weights_only=True",
    "fsdp": "2 ranks, FSDPStrategy(state_dict_type='sharded'): a directory per checkpoint",
    "fsdp2": "2 ranks, ModelParallelStrategy: a directory per checkpoint",
}


class Batches(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        x, y = common.torch_batch(i)
        return x[0], y[0]


class Module(pl.LightningModule):
    def __init__(self, options):
        super().__init__()
        self.options, self.losses, self.found = options, [], None
        self.rng = None  # as loaded: the loader of the first epoch draws from it before anything else is called
        self.net = common.torch_model()

    def configure_model(self):
        if self.options.kind == "fsdp2":
            from torch.distributed.fsdp import fully_shard

            for layer in (self.net[0], self.net[3]):
                fully_shard(layer, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, index):
        loss = ((self.net(batch[0]) - batch[1]) ** 2).mean()
        self.losses.append(loss.item().hex())
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)]

    # Lightning saves no state of the random generator: this is how its users add it.
    def on_save_checkpoint(self, checkpoint):
        checkpoint["rng"] = torch.get_rng_state()

    def on_load_checkpoint(self, checkpoint):
        torch.set_rng_state(checkpoint["rng"])
        self.rng = torch.get_rng_state()

    def note(self):
        """Remembers the state, and begins the losses after it."""
        self.losses = []
        trainer = self.trainer
        self.found = common.digest(
            {
                "model": self.state_dict(),
                "optimizer": trainer.optimizers[0].state_dict(),
                "scheduler": trainer.lr_scheduler_configs[0].scheduler.state_dict(),
                "step": trainer.global_step,
                "rng": torch.get_rng_state() if self.rng is None else self.rng,
            }
        )


class Note(pl.Callback):
    """Notes the state when the last step to be saved is over, or when a checkpoint has been loaded."""

    def __init__(self, options):
        self.options = options

    def on_train_epoch_end(self, trainer, module):
        if self.options.what == "save" and trainer.global_step == self.options.steps:
            module.note()

    def on_train_start(self, trainer, module):
        if self.options.what == "load":
            module.note()


def strategy(options):
    if options.kind == "fsdp2":
        from lightning.pytorch.strategies import ModelParallelStrategy

        return ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo")
    if options.kind == "fsdp":
        from lightning.pytorch.strategies import FSDPStrategy

        class OnCPU(FSDPStrategy):
            """Lightning and FSDP ask for a GPU; the sharding and the saving work on a CPU just as well."""

            def _setup_model(self, model):
                from torch.distributed.fsdp import FullyShardedDataParallel

                return FullyShardedDataParallel(model, device_id=torch.device("cpu"), **self.kwargs)

        return OnCPU(state_dict_type="sharded", process_group_backend="gloo", auto_wrap_policy={torch.nn.Linear})
    return "auto"


class SaveUntil(ModelCheckpoint):
    """Saves nothing after the last step to be saved, so that the steps after it can be compared."""

    last_step = None

    def on_train_epoch_end(self, trainer, module):
        if trainer.global_step <= self.last_step:
            super().on_train_epoch_end(trainer, module)


def main():
    options = common.options(__doc__, KINDS)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    common.torch_setup(options.what)
    module = Module(options)
    saver = SaveUntil(
        dirpath=options.output_dir,
        every_n_epochs=options.every,
        save_top_k=-1,
        save_last="link" if options.kind == "link" else True if options.kind == "copy" else None,
        save_weights_only=options.kind == "weights",
        save_on_train_epoch_end=True,
    )
    saver.last_step = options.steps if options.what == "save" else 0
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2 if options.kind.startswith("fsdp") else 1,
        strategy=strategy(options),
        max_epochs=options.steps + options.more,
        callbacks=[Note(options), saver],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(Batches(), batch_size=2), ckpt_path=options.source)
    common.write_states(options.states, module.found, module.losses, trainer.global_rank if trainer.world_size > 1 else None)


if __name__ == "__main__":
    main()
