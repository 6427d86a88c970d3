package format_test

import (
	"bytes"

	"github.com/ckptsync/ckptsync/sync/layout/format"
)

func check(name string, data []byte) format.Result {
	return format.Check(name, bytes.NewReader(data), int64(len(data)))
}
