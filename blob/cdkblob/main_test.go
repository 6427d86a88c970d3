package cdkblob

import (
	"os"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/test/stores"
)

// TestMain gives all tests the same credentials and switches off what the
// machine's owner has configured, so that tests may run in parallel.
func TestMain(m *testing.M) {
	for _, kv := range append(stores.AzureEnv(), "STORAGE_EMULATOR_HOST=", "GOOGLE_APPLICATION_CREDENTIALS="+os.DevNull) {
		k, v, _ := strings.Cut(kv, "=")
		os.Setenv(k, v)
	}
	os.Exit(m.Run())
}
