// Command bench measures what ckptsync costs and what it is worth, beside the
// raw floor and the peers that are installed, in one run on one machine:
//
//	go run ./test/bench [flags]           move files up and down: the tables
//	go run ./test/bench trainer [flags]   what an upload takes from a trainer beside it
//	go run ./test/bench shaped [flags]    how it scales with connections on a slow network
//	go run ./test/bench lag [flags]       how soon after its evidence a step is committed
//	go run ./test/bench restart [flags]   what is sent twice after a crash of either side
//	go run ./test/bench memory [flags]    how much memory a very large file takes
//	go run ./test/bench all [flags]       all of them
//
// Each command says with -h which flags it has, and ends with the list of what
// is asked of ckptsync, each "ok", "MISSED" or "not measured", with the
// numbers; -check makes a MISSED one an exit status of 1, -json FILE keeps every
// sample.
//
// # What is compared
//
// The program itself, built for the run, with its defaults: `ckptsync push` and
// `ckptsync restore`. The floor is a bare HTTP client that moves the same bytes
// of the same files with as many requests at a time: without digests (with
// sendfile where that can be), and with those that ckptsync computes, BLAKE3
// and CRC32C in one pass up, BLAKE3 down; down it writes files as ckptsync does:
// preallocated, in place, fsync, rename. Peers are those that the script setup
// has installed, with their defaults. What is not there is one line.
//
// Every mover is a process of its own. Its wall time is from its start to its
// end; its processor time is what wait4 says of it and its children; its peak
// is the high-water mark of its resident memory.
//
// The sink is a server of our own, in another process, that throws away what it
// gets and sends the source file where it is asked for it: real servers are
// slower than the clients here. versitygw is a real one.
//
// # The trap
//
// On virtual machines with free page reporting the first touch of memory that
// was idle costs many times what it costs when warm: up to 3.5 CPU seconds per
// GiB of page cache or heap. So the sources are read before each upload, as
// much free memory as a download will fill is touched before it, movers take
// turns in an order that changes from round to round, and a run during which
// the kernel gave pages back to the host is marked. What can be compared is
// medians and ratios within one run on a machine that does nothing else.
package main
