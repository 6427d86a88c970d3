package main

// transferSettings are the settings of commands that move steps: how they treat
// the network, the store and, if they run beside a trainer, the machine.
func transferSettings(besideTrainer bool) []string {
	flags := []string{"concurrency", "memory", "bandwidth", "patience", "stall"}
	if besideTrainer {
		flags = append(flags, "nice", "drop-cache")
	}
	return flags
}
