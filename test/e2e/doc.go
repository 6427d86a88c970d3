// Package e2e proves the promise from the outside, on a real trainer: the
// Hugging Face Trainer is killed in the middle of a save while the real
// program watches its output directory, a node restores, training goes on, and
// every loss from there on equals that of a run that was never interrupted.
//
//	go test ./test/e2e
//
// It needs the Python environment that test/trainers/setup makes. Without it
// the test is skipped with one line that says so; with
// CKPTSYNC_REQUIRE_TRAINERS=1 (CI) it makes the environment itself, and fails
// if it cannot. The cases on a real S3 server need what package stores needs.
package e2e
