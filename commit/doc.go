// Package commit is what is in the bucket and what it means: the objects of a
// run, their exact bytes (FORMAT.md), the only code that knows their keys
// ([Store]), and the pure functions that say which commit is the head
// ([View.Head]) and which commits a restore may fall back to ([View.Lineage]).
//
// The words are those of the commit protocol:
//
//	run       one training run; a name its owner chose
//	step      one saved state of the run, at a training step number
//	attempt   one (re)start of the training job, numbered 1, 2, 3 …
//	revision  0 for the first save of a step in an attempt, then 1, 2 …
//	node      one of the N machines that each save a part of a step
//	manifest  the list of one node's files of a step, with digests
//	commit    a step that is durable, whole and verified: it exists exactly
//	          when its marker exists and no tombstone does
//
// The package does no I/O except through a blob.Bucket, and knows nothing of
// local files, layouts or configuration.
package commit
