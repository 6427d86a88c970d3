package blob

import (
	"context"
	"errors"
	"io"
)

// This file holds the checks that every driver makes in the same way.

// copyBlock is how many bytes CopySource reads at a time.
const copyBlock = 1 << 20

// CopySource writes the whole of src to w and returns the CRC32C of what it
// wrote. A source that fails or ends early is an error as [SourceError] makes
// it; a done ctx is noticed between blocks; an error of w is returned as it is.
func CopySource(ctx context.Context, w io.Writer, op, key string, src Source) (crc uint32, err error) {
	size := src.Size()
	if size < 0 {
		return 0, Errorf(ErrCorrupt, op, key, "the source says that its size is %d", size)
	}
	memory, ok := src.(Bytes)
	var buf []byte
	if !ok {
		buf = make([]byte, min(size, copyBlock))
	}
	for off := int64(0); off < size; {
		if err := ContextError(ctx, op, key); err != nil {
			return 0, err
		}
		p := buf[:min(int64(len(buf)), size-off)]
		if ok {
			p = memory[off:min(off+copyBlock, size)]
		} else if n, err := src.ReadAt(p, off); n < len(p) {
			return 0, SourceError(op, key, off+int64(n), size, err)
		}
		crc = UpdateCRC32C(crc, p)
		if _, err := w.Write(p); err != nil {
			return 0, err
		}
		off += int64(len(p))
	}
	return crc, nil
}

// SourceError is the error for a source of size bytes whose ReadAt failed with
// err at off. It is ErrCorrupt, which nobody retries, unless err has a class of
// its own (a source may itself be an object of another bucket).
func SourceError(op, key string, off, size int64, err error) *Error {
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	kind := Class(err)
	if kind == ErrTemporary && !errors.Is(err, ErrTemporary) {
		kind = ErrCorrupt
	}
	return Errorf(kind, op, key, "the source failed at byte %d of %d: %w", off, size, err)
}

// CheckCRC returns an ErrCorrupt error if want is given and is not got.
func CheckCRC(op, key string, want *uint32, got uint32) error {
	if want != nil && *want != got {
		return Errorf(ErrCorrupt, op, key, "crc32c is %08x, not %08x as announced", got, *want)
	}
	return nil
}

// ContextError returns nil while ctx is not done, then an *Error that matches
// both ctx.Err() and the cause of the cancellation.
func ContextError(ctx context.Context, op, key string) error {
	if ctx.Err() == nil {
		return nil
	}
	return &Error{Op: op, Key: key, Kind: ctx.Err(), Err: context.Cause(ctx)}
}

// CheckRange returns an ErrUnsupported error if a range from off cannot be
// read of an object of size bytes, and else how many bytes there are to read
// when n were asked for (n < 0: to the end).
func CheckRange(key string, off, n, size int64) (int64, error) {
	if off < 0 || off > size {
		return 0, Errorf(ErrUnsupported, "open", key, "byte %d is outside of an object of %d bytes", off, size)
	}
	if n < 0 || n > size-off {
		n = size - off
	}
	return n, nil
}

// Check returns an ErrUnsupported error if an upload in parts cannot have these
// options on every store.
func (o *UploadOptions) Check(key string) error {
	bad := func(format string, args ...any) error { return Errorf(ErrUnsupported, "upload", key, format, args...) }
	switch {
	case o == nil:
		return bad("no size and part size given")
	case o.Size < 1 && o.Size != SizeUnknown:
		return bad("a size of %d bytes: use Put for an empty object", o.Size)
	case o.PartSize < MinPart:
		return bad("parts of %d bytes: the least is %d", o.PartSize, MinPart)
	case o.Parts() > MaxParts:
		return bad("%d parts of %d bytes: the most is %d", o.Parts(), o.PartSize, MaxParts)
	}
	return nil
}

// Parts is the number of parts; of an object of SizeUnknown, the most that it
// can have.
func (o *UploadOptions) Parts() int {
	if o.Size == SizeUnknown {
		return MaxParts
	}
	return int((o.Size + o.PartSize - 1) / o.PartSize)
}

// PartLen is the number of bytes of part n; 0 if there is no such part. Of an
// object of SizeUnknown it is the most that the part can have.
func (o *UploadOptions) PartLen(n int) int64 {
	if n < 1 || n > o.Parts() {
		return 0
	}
	if o.Size == SizeUnknown {
		return o.PartSize
	}
	return min(o.PartSize, o.Size-int64(n-1)*o.PartSize)
}

// fits reports whether part n can have size bytes; last says that no part
// comes after it, as far as is known.
func (o *UploadOptions) fits(n int, size int64, last bool) bool {
	if o.Size == SizeUnknown && last {
		return size >= 1 && size <= o.PartLen(n)
	}
	return size == o.PartLen(n)
}

// CheckPart returns an error if part n cannot have size bytes: ErrUnsupported
// if there is no part n, ErrCorrupt if its size is another.
func (o *UploadOptions) CheckPart(key string, n int, size int64) error {
	if n < 1 || n > o.Parts() {
		return Errorf(ErrUnsupported, "put part", key, "there is no part %d of %d", n, o.Parts())
	}
	if !o.fits(n, size, true) {
		return Errorf(ErrCorrupt, "put part", key, "part %d has %d bytes, not %d", n, size, o.PartLen(n))
	}
	return nil
}

// CheckParts returns an ErrCorrupt error unless parts are exactly the parts of
// such an upload, ascending from 1 without a gap, each of the right size.
func (o *UploadOptions) CheckParts(key string, parts []Part) error {
	if len(parts) != o.Parts() && (o.Size != SizeUnknown || len(parts) == 0) {
		return Errorf(ErrCorrupt, "complete", key, "%d parts given, not %d", len(parts), o.Parts())
	}
	for i, p := range parts {
		if p.Number != i+1 {
			return Errorf(ErrCorrupt, "complete", key, "part %d stands where part %d should", p.Number, i+1)
		}
		if !o.fits(i+1, p.Size, i == len(parts)-1) {
			return Errorf(ErrCorrupt, "complete", key, "part %d of %d has %d bytes, not %d", i+1, len(parts), p.Size, o.PartLen(i+1))
		}
	}
	return nil
}

// PartsSize is the size of the object that parts make up, in bytes.
func PartsSize(parts []Part) (size int64) {
	for _, p := range parts {
		size += p.Size
	}
	return size
}

// PartsCRC32C is the checksum of the object that parts make up; false if one
// of them has none.
func PartsCRC32C(parts []Part) (uint32, bool) {
	var crc uint32
	for _, p := range parts {
		if p.CRC32C == 0 {
			return 0, false
		}
		crc = CombineCRC32C(crc, p.CRC32C, p.Size)
	}
	return crc, true
}
