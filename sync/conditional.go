package syncer

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/naiveblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/upload"
)

const (
	probeName = "probe.json"
	// probeKeeps is how long what a probe found out is believed.
	probeKeeps = 24 * time.Hour
)

// probed is probe.json: what a probe of the store found out (R9), so that not
// every start asks anew.
type probed struct {
	Store   string    `json:"store"`
	Works   bool      `json:"works"`
	Details string    `json:"details"`
	At      time.Time `json:"at"`
}

// conditional finds out, before the first write, whether the store keeps
// create-if-absent. One that does not is written to as by a single writer: it
// looks, writes and reads back, and the owner is warned that a second writer
// on the run would not be noticed.
func (e *Engine) conditional(ctx context.Context) error {
	if e.probed {
		return nil
	}
	p, ok := e.loadProbe()
	if !ok {
		r, err := blob.Probe(ctx, e.cfg.Bucket, e.store.Key("probe/"))
		if err != nil {
			return storeError(err)
		}
		p = probed{Store: e.cfg.StoreURL, Works: r.Verdict == blob.ProbeWorks, Details: r.Details, At: e.cfg.now()}
		e.saveProbe(p)
	}
	if !p.Works && e.cfg.Nodes > 1 {
		return &NodesError{fmt.Sprintf("the store has no create-if-absent (%s), and several nodes cannot commit a step together without it: use another store, or one writer on a shared directory", p.Details)}
	}
	e.probed = true
	if p.Works {
		return nil
	}
	e.notice("store", "it has no create-if-absent ("+p.Details+"): run one writer per run only, because a second one would not be noticed")
	b := naiveblob.New(e.cfg.Bucket)
	store, err := commit.NewStore(b, e.store.Run(), commit.SignWith(e.cfg.Signer))
	if err != nil {
		return err
	}
	e.cfg.Bucket, e.store, e.up = b, store, upload.New(b, e.cfg.Concurrency, e.cfg.Memory)
	e.up.Cache = e.cfg.DropCache
	return nil
}

func (e *Engine) loadProbe() (p probed, ok bool) {
	data, err := os.ReadFile(filepath.Join(e.cfg.StateDir, probeName))
	if err != nil || json.Unmarshal(data, &p) != nil || p.Store != e.cfg.StoreURL {
		return probed{}, false
	}
	age := e.cfg.now().Sub(p.At)
	return p, age >= 0 && age < probeKeeps
}

// saveProbe is of no consequence if it fails: the next start asks again.
func (e *Engine) saveProbe(p probed) {
	data, err := json.MarshalIndent(p, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(e.cfg.StateDir, probeName), append(data, '\n'), 0o600)
	}
	if err != nil {
		e.cfg.Log.Debug("probe not remembered", "err", fmt.Sprint(err))
	}
}
