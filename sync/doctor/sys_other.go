//go:build !linux

package doctor

func fileSystem(string) (string, bool) { return "", false }

func freeSpace(string) (uint64, bool) { return 0, false }

func sameFileSystem(string, string) (same, known bool) { return false, false }
