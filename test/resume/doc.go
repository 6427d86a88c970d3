// Package resume proves, framework by framework, that what ckptsync brings
// back is what the framework saved: a script under test/trainers saves with the
// framework itself, the real program pushes, the disk is lost, another node
// restores, a fresh process loads with the framework's own call, and every
// tensor, every state of an optimizer and of a random generator, and every loss
// of the steps after that is the same to the last bit.
//
//	go test ./test/resume
//	CKPTSYNC_RESUME=accelerate,orbax go test ./test/resume   # these alone
//	CKPTSYNC_RESUME=quick go test ./test/resume              # those that take least
//
// It needs the Python environments that test/trainers/setup makes (hf,
// lightning, jax). Where one is not there, its cases are skipped, each with one
// line that says so; with CKPTSYNC_REQUIRE_TRAINERS=1 (CI) the environment is
// made, and the test fails if it cannot be.
package resume
