#!/usr/bin/env python3
"""Saves a tiny Keras model (JAX back end) in OUTPUT_DIR: by callbacks during fit, or by the model's own methods."""

import os

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["KERAS_HOME"] = "keras-home"

import keras
import numpy

import common

KINDS = {
    "backup": "BackupAndRestore, interrupted after --steps epochs: the directory stays",
    "backup-double": "the same with double_checkpoint=True",
    "checkpoints": "ModelCheckpoint: model-NN.keras and, of the weights, model-NN.weights.h5",
    "orbax": "the OrbaxCheckpoint callback",
}


class Interrupt(keras.callbacks.Callback):
    """Ends the training as a kill would, when the epoch's backup has been made: it must come after that callback."""

    def __init__(self, epochs):
        super().__init__()
        self.epochs = epochs

    def on_epoch_end(self, epoch, logs=None):
        if epoch + 1 == self.epochs:
            raise KeyboardInterrupt


def state_of(model):
    return common.digest({v.path: numpy.asarray(v.value) for v in model.variables + model.optimizer.variables})


def callbacks(options, where):
    if options.kind.startswith("backup"):
        return [keras.callbacks.BackupAndRestore(where, double_checkpoint=options.kind == "backup-double")]
    if options.kind == "orbax":
        return [keras.callbacks.OrbaxCheckpoint(directory=os.path.abspath(where), save_freq="epoch", max_to_keep=3)]
    return [
        keras.callbacks.ModelCheckpoint(os.path.join(where, "model-{epoch:02d}.keras")),
        keras.callbacks.ModelCheckpoint(os.path.join(where, "model-{epoch:02d}.weights.h5"), save_weights_only=True),
    ]


def main():
    options = common.options(__doc__, KINDS)
    keras.utils.set_random_seed(7 if options.what == "save" else 99)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="tanh", name="first"), keras.layers.Dense(4, name="last")])
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    x = numpy.random.default_rng(5).normal(size=(8, 8)).astype("float32")
    y = x[:, :4] * 2
    os.makedirs(options.output_dir, exist_ok=True)
    if options.what == "save":
        interrupt = [Interrupt(options.steps)] if options.kind.startswith("backup") else []
        try:
            model.fit(x, y, epochs=options.steps, shuffle=False, verbose=0, callbacks=callbacks(options, options.output_dir) + interrupt)
        except KeyboardInterrupt:
            pass
        common.write_states(options.states, state_of(model), [])
    else:
        model.optimizer.build(model.trainable_variables)
        seen = {}

        class Look(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                seen.setdefault("state", (epoch, state_of(self.model)))

        more = [*callbacks(options, options.source), Look()]
        model.fit(x, y, epochs=options.steps + options.more, shuffle=False, verbose=0, callbacks=more)
        common.write_states(options.states, seen["state"][1], [])


if __name__ == "__main__":
    main()
