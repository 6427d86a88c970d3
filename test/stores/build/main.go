// Command build builds the servers that the tests use and prints where they
// are, so that a CI step can do it, and cache it, ahead of the tests.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/ckptsync/ckptsync/test/stores"
)

func main() {
	failed := false
	for _, build := range []func(context.Context) (string, error){stores.BuildVersitygw, stores.BuildMinIO, stores.BuildFakeGCS, stores.InstallAzurite} {
		path, err := build(context.Background())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			failed = true
			continue
		}
		fmt.Println(path)
	}
	if failed {
		os.Exit(1)
	}
}
