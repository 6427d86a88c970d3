// Package syncer brings whole training checkpoints into an object store and
// back. (Its folder is called sync.)
//
// # The life of a step
//
// engine.go is the one file to read. A step, which is a directory or a file
// that a layout recognises by name, goes through these stages:
//
//	        ┌────────────── anything changed ───────────────┐
//	        ▼                                               │
//	      Seen ──► Complete ──► Held ──► Uploaded ──► Sealed ──► Committed
//	        │  ▲                  │                               │
//	        ▼  │ changed          └ gone, and no hold: Vanished   │ saved again:
//	   Incomplete                                                 ▼ next revision
//	   (why not)                                                Seen
//
//	Seen        a name; what it holds is being judged, or has to settle
//	Incomplete  the layout says exactly what is missing or wrong
//	Complete    the layout's evidence is there, as old as it must be, and quiet
//	Held        hard links keep its bytes, and they are those that were judged
//	Uploaded    every file was read once and its object acknowledged
//	Sealed      the last pass found nothing changed; the part manifest is written
//	Committed   the commit marker is there: create-if-absent, the only thing
//	            that makes a step exist for a restore
//
// What is quiet of a step is sent while it is still incomplete (early.go); it
// counts only once it has been proven to be what the whole step holds.
//
// Scanning is the truth: what a step is follows from looking at it, never from
// an event. File system events (package watch) only say that now is a good
// time to look.
//
// # Who may lose what
//
// The store holds the truth. The state directory beside the root is a cache:
// the attempt that this host writes under, a journal of what was sent, holds,
// staging of restores. Lost, truncated or corrupt, it is moved aside and
// rebuilt; nothing is committed twice and nothing is lost.
package syncer
