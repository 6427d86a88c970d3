// Command faults runs the real program on a real store and has something go
// wrong at each point of its work, one after another:
//
//	go run ./test/faults -update test/README.md         # everything; it writes the table
//	go run ./test/faults -op push -store s3 -every 10
//	go run ./test/faults -op '^push$' -fault '^killed at a local write$' -point 17   # one that was found
//
// A point is a call of the system by which the program, unmodified, changes a
// file below its node (which it is watched at by ptrace), or a request that it
// makes to a real S3 server (through a proxy). At each point the site is as at
// first; the fault happens; what has to hold at any moment is checked; the
// command is run again; what has to hold in the end is checked. See operation
// for the commands, fault for what goes wrong, and disk for what a power cut
// takes.
package main
