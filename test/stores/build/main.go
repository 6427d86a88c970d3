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
	bin, err := stores.BuildVersitygw(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(bin)
}
