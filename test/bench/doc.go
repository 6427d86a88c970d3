// Command bench measures what moving a large file costs this machine: CPU
// seconds per GiB, wall time and peak memory of the process that moves it,
// beside the floor, which is net/http moving the same bytes the same way.
//
//	go run ./test/bench [-size 2GiB] [-rounds 3] [-dir DIR] [-stores sink,versitygw]
//
// What can be compared is the ratios within one run: the floor, the driver and
// the engine take turns, each time in a process of its own, and the medians
// are printed with the least and the greatest. Traffic stays on the loopback
// interface, whose cost (the sender pays for the receiver's softirq as well)
// is in all of them.
//
// The sink is a server of our own, in a process of its own, that throws away
// what it gets, checks nothing and makes up what it is asked for. It confirms
// checksums as a store would that looks at them.
//
// # The trap
//
// On virtual machines with free page reporting the first touch of memory that
// was idle costs many times what it costs when warm: up to 3.5 CPU seconds per
// GiB of page cache or heap. So the source file is read before each round, the
// target file is written over and never made anew, and a run during which the
// kernel gave pages back to the host is marked.
package main
