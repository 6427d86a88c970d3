// Package machine is how the program behaves towards the machine that it shares
// with a trainer: how much memory it takes, and how little of the processor and
// the disk it insists on.
package machine
