package blobtest_test

import (
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
)

func TestKeysAreValidAndApart(t *testing.T) {
	keys := blobtest.Keys()
	for _, a := range keys {
		if err := blob.CheckKey("test", a); err != nil {
			t.Error(err)
		}
		for _, b := range keys {
			if strings.HasPrefix(a, b+"/") {
				t.Errorf("%q lies below %q", a, b)
			}
		}
	}
}
