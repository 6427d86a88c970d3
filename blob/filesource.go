package blob

import "os"

// FileSource is a source whose bytes are n bytes of an open file, n being its
// size, from an offset.
type FileSource interface {
	Source
	// Section is the file, which stays open as long as the source may be read,
	// and the offset of the first byte.
	Section() (file *os.File, off int64)
}

// FileSender is the ability to have the system send a [FileSource], so that its
// bytes never enter this program.
type FileSender interface {
	// SendsFiles reports whether a source of more than a megabyte that comes with
	// a checksum would be sent that way now: the store is then known to compare
	// the checksum with what arrived, and answers ErrCorrupt if the file is not
	// what the checksum was made of.
	SendsFiles() bool
}

// SendsFiles reports what b says as a [FileSender]; false if it says nothing.
func SendsFiles(b Bucket) bool {
	s, ok := As[FileSender](b)
	return ok && s.SendsFiles()
}
