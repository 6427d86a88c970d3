// Package crash kills the real program, and the real store, at random moments
// and looks at what is left. It holds tests alone.
//
// The program is built once. A trainer (in the test) writes Hugging Face steps
// with files below and above the size of a part; `ckptsync daemon`, `push` or
// `restore` works on them as a process of its own, over a directory store or
// over a versitygw server, and is ended by SIGKILL at a moment drawn from the
// time that the work takes when it is left alone. After every kill the bucket
// is read back with handles of the test's own:
//
//   - every marker's parts load, and every object that they name is there and
//     has, byte for byte, what the trainer saved in one save of that step;
//   - the head is nothing, or such a step, and never an older one than before;
//   - no content of a step is committed twice;
//   - no file that the journal had down as sent is sent again.
//
// In the end everything is committed, and a restore into an empty directory
// gives the trainer's tree, with modes and times; a second one moves nothing.
//
// `go test ./test/crash` is a short slice. -crash.kills, or
// CKPTSYNC_CRASH_KILLS, sets how many kills of the daemon must land while an
// upload to each store is under way (the other tests take a share of it: the
// gate's 150 are some minutes); CKPTSYNC_CRASH_OUTAGE=30s has the killed store
// stay away for that long; -crash.seed, or CKPTSYNC_CRASH_SEED, repeats the moments of a run, as
// far as a machine allows that.
package crash
