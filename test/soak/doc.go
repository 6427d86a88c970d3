// Command soak trains, saves, rotates, syncs, prunes, kills and restores for as
// long as it is told, and holds every step that comes back against what the
// trainer saved:
//
//	go run ./test/soak -for 30m
//
// It runs the real program against a real S3 server, through a proxy that drops
// requests, loses answers, ends them early, is busy, and stalls. There are two
// nodes with a run each. On the one, trainer and daemon are killed at random,
// and now and then its disks are lost; each start begins with a restore. On the
// other the trainer alone is killed, and the daemon lives to the end: its memory
// and its open files have to stay as they are. Both prune.
//
// It ends with status 1 if a restore brought anything but a save of the
// trainer, or an older step than was committed before; if a commit is torn in
// the end; if nothing was committed or restored; or if memory or open files
// grew.
package main
