// Package status keeps what a daemon's state is: for each run, how far its
// commits are behind what the trainer has saved, what is under way, what is not
// committed and why, and for whom a step waits; for the store, whether it
// answers. It listens to the engines' events ([syncer.Reporter]) and to the
// store's calls, and is asked for a [Snapshot], which is plain data: the status
// page, the metrics and the status command show it in their own ways.
//
// What it keeps is bounded: of finished steps the last few, of warnings too, and
// of the lag a history that gets coarser as it gets longer.
package status
