// Package restore brings one committed step from the bucket back to a local
// directory, verified byte by byte (protocol rule R10).
//
// It works in three layers, each usable alone:
//
//	[NewTree]  what the commit says should be there, for one node (pure)
//	[NewPlan]  that against what is there: fetch, reuse, leave a hole (pure)
//	[Run]      carries a plan out for one commit; [Newest] walks the lineage
//
// # What holds at every instant
//
// The root (the directory the trainer reads) never contains a part of a step:
// everything is written into a staging directory first, verified, given its
// modes and times, and made durable; then one rename puts it in place. Where
// the file system can exchange two names in one operation, a step that is
// replaced is there, old or new, at every moment. Pointer files (DeepSpeed's
// "latest") come after that, so that they never name a step that is not there.
//
// Nothing of the user's is deleted. What has to make room is moved to the
// quarantine and stays there until a person removes it.
//
// # Places
//
//	<state>/staging/<commit>.<token>/      a restore at work, or what one left that did not end
//	<state>/quarantine/<name>.<n>          entries that made room, n = 1, 2 …
//	<root>/.ckptsync-staging/              instead of the first, where the state
//	<root>/.ckptsync-quarantine/           directory is on another file system
//
// The state directory is beside the root, never inside. When the two are on
// different file systems (a volume mounted exactly at the root) no rename can
// lead from one to the other; then the two directories under the root are
// used. The staging one is gone when [Run] has restored the step. The
// quarantine one stays if it holds something: to copy hundreds of gigabytes to
// another disk and then delete the original would be neither quick nor safe,
// and a rename is both. No layout takes their names for steps; [Reserved] tells
// them.
//
// # Going on
//
// A restore that was killed, cancelled, or ended by a store or a full disk
// leaves its staging, and the next one takes it over: every chunk in it is
// digested again, whatever may have become of it, and only what is not right is
// fetched. There is never more than one such staging for long: the next restore
// takes it over or removes it, whatever its commit; a daemon removes it when it
// starts ([CleanLeftovers]), and anything that opens the state directory once it
// is older than [KeepLeftovers] ([CleanStale]). After damage, or when the disk
// failed to make bytes durable, nothing is left.
//
// # Errors
//
// A damaged commit ([*DamagedError]) is never confused with a store that
// cannot be reached or denies access ([*StoreError]), nor with objects in an
// archive class ([*ArchivedError]), nor with a commit whose manifests are
// refused ([*RefusedError]); a local disk that has no room is a [*SpaceError].
// Only the first says anything about the bytes in the bucket.
//
// # Callers
//
// The caller holds the lock on the state directory for as long as any function
// of this package that takes a root runs.
package restore
