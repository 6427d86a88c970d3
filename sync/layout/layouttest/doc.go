// Package layouttest writes small but valid steps, and the files in them, for
// tests: safetensors with real headers, torch zips with real central
// directories and pickles, whole Hugging Face Trainer steps in the order in
// which the trainer writes them. Everything is deterministic: the same call
// gives the same bytes and the same mtimes.
//
// Only tests may import it.
package layouttest
