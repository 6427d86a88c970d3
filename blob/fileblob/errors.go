package fileblob

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"syscall"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/durable"
)

// classify makes err, of the operating system, one of the contract's. An
// *blob.Error stays what it is.
func classify(op, key string, err error) error {
	if err == nil {
		return nil
	}
	var e *blob.Error
	if errors.As(err, &e) {
		return err
	}
	return &blob.Error{Op: op, Key: key, Kind: classOf(err), Err: err}
}

func classOf(err error) error {
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	switch {
	case is(context.Canceled):
		return context.Canceled
	case is(context.DeadlineExceeded):
		return context.DeadlineExceeded
	case is(syscall.EROFS, fs.ErrPermission):
		return blob.ErrDenied
	case is(durable.ErrNoExclusive, syscall.ENAMETOOLONG, syscall.EILSEQ, syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP):
		return blob.ErrUnsupported
	case is(fs.ErrNotExist):
		return blob.ErrNotExist
	case strings.Contains(err.Error(), "path escapes"): // of os.Root, which exports no value
		return blob.ErrUnsupported
	}
	// ENOSPC, EDQUOT, EIO, ESTALE, EMFILE, and what is not known.
	return blob.ErrTemporary
}

// missing reports whether err says that there is no file of that name, which it
// also does when a directory of its path is a file.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}
