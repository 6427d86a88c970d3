package main

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ckptsync/ckptsync/test/stores"
)

// TestCloud runs the scripts of testdata/cloud on a Google Cloud Storage and on
// an Azure Blob Storage.
func TestCloud(t *testing.T) {
	t.Run("GCS", func(t *testing.T) {
		g := stores.FakeGCS(t)
		cloud(t, g.URL(g.Bucket(t, "bucket"), "team a/x"), g.URL("nowhere", ""), nil)
	})
	t.Run("Azure", func(t *testing.T) {
		a := stores.Azurite(t)
		cloud(t, a.URL(a.Container(t, "container"), "team a/x"), a.URL("nowhere", ""), stores.AzureEnv())
	})
}

func cloud(t *testing.T, store, nowhere string, vars []string) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/cloud",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			env.Setenv("CKPTSYNC_STORE", store)
			env.Setenv("NOWHERE", nowhere)
			env.Vars = append(env.Vars, vars...)
			// Large enough to be sent in parts.
			big := make([]byte, 40<<20+12345)
			rand.NewChaCha8([32]byte{1}).Read(big)
			return os.WriteFile(filepath.Join(env.WorkDir, "node1/out/epoch-5/big.bin"), big, 0o644)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"status": cmdStatus, "json": cmdJSON},
	})
}
