#!/usr/bin/env python3
"""Saves with TensorFlow's own CheckpointManager in OUTPUT_DIR: ckpt-N.index, ckpt-N.data-00000-of-00001 and the pointer "checkpoint"."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import tensorflow as tf

import common


def main():
    options = common.options(__doc__ + " --from is OUTPUT_DIR.")
    tf.random.set_seed(7 if options.what == "save" else 99)
    weight = tf.Variable(tf.random.normal((8, 16)))
    moment = tf.Variable(tf.random.normal((8, 16)))
    step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(step=step, model=tf.train.Checkpoint(weight=weight), optimizer=tf.train.Checkpoint(moment=moment))
    manager = tf.train.CheckpointManager(checkpoint, options.source if options.what == "load" else options.output_dir, max_to_keep=3)
    if options.what == "save":
        for i in range(1, options.steps + 1):
            step.assign(i)
            weight.assign_add(moment * 0.1)
            moment.assign(moment * 0.9)
            if i % options.every == 0:
                manager.save(checkpoint_number=i)
    else:
        checkpoint.restore(manager.latest_checkpoint).assert_consumed()
    found = common.digest({"weight": weight.numpy(), "moment": moment.numpy(), "step": int(step)})
    common.write_states(options.states, found, [])


if __name__ == "__main__":
    main()
