#!/usr/bin/env python3
"""Trains with Composer and its CheckpointSaver in OUTPUT_DIR, a batch per epoch, and resumes with Trainer(load_path=...)."""

from composer import Trainer
from composer.models import ComposerModel
from torch.utils.data import DataLoader, Dataset

import common

KINDS = {"plain": "one process", "weights": "save_weights_only=True"}


class Batches(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        x, y = common.torch_batch(i)
        return x[0], y[0]


class Model(ComposerModel):
    def __init__(self):
        super().__init__()
        self.net = common.torch_model()

    def forward(self, batch):
        return self.net(batch[0])

    def loss(self, outputs, batch):
        return ((outputs - batch[1]) ** 2).mean()


def main():
    options = common.options(__doc__, KINDS)
    common.torch_setup(options.what)
    model = Model()
    optimizer, _ = common.torch_optimizer(model)
    trainer = Trainer(
        model=model,
        optimizers=optimizer,
        train_dataloader=DataLoader(Batches(), batch_size=2),
        max_duration=f"{options.steps if options.what == 'save' else options.steps + options.more}ep",
        device="cpu",
        seed=7 if options.what == "save" else 99,
        run_name="tiny",
        save_folder=options.output_dir if options.what == "save" else None,
        save_interval=f"{options.every}ep",
        save_weights_only=options.kind == "weights",
        load_path=options.source,
        progress_bar=False,
    )
    if options.what == "save":
        trainer.fit()
    state = trainer.state
    found = {"model": state.model.state_dict(), "optimizer": state.optimizers[0].state_dict(), "time": str(state.timestamp.batch)}
    trainer.close()
    common.write_states(options.states, common.digest(found), [])


if __name__ == "__main__":
    main()
