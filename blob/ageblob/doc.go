// Package ageblob encrypts objects before they reach the store, by the library
// filippo.io/age. What is above it sees plain bytes, sizes and ranges.
//
// # The form of an object
//
// An encrypted object is a row of segments. Each has [Segment] plain bytes, the
// last one what is left; an empty object is one empty segment. A segment is a whole
// age file (age-encryption.org/v1, binary) for exactly one X25519 recipient, so
// that its header has the same length always, and offsets and sizes are arithmetic:
// a range is read by reading the segments that it lies in. What is encrypted in a
// segment is a binding of 32 bytes and then the plain bytes. The binding is the
// BLAKE3-256 digest of
//
//	ckptsync segment v1\n<key of the object in the bucket>\n<number of the segment, from 0>\n<word>
//
// where the word is "more" before another segment, "last" of the last one, and
// "open" of any in an upload whose size was not known.
//
// # What that protects
//
// Nobody without the key reads a byte, or writes a segment that reads as one: the
// recipient of a [Key] is as secret as its identity, and is never written anywhere.
// A segment that was changed, or comes from another place or object, is
// blob.ErrCorrupt, and so is an object that was cut, except at the end of a segment
// of an upload of unknown size. What is not noticed here: that an object was
// replaced by an older version of itself, or a segment by the same segment of an
// older version; and that one was removed. Keys, times and sizes can be seen by
// whoever can list the store.
package ageblob
