package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/blob/s3blob"
	syncer "github.com/ckptsync/ckptsync/sync"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// engineArgs are what the engine does in a process of this program: to see
// where its processor time goes.
type engineArgs struct {
	Way, Store, Run, Root, State string
	Profile                      string // file
}

// engineMover is a row only where profiles are asked for.
func engineMover() mover {
	return mover{
		name: "engine, profiled",
		can:  func(*store, *workload, string) string { return "only with -profiles" },
		process: func(b *bench, t *trip) (process, error) {
			a := engineArgs{
				Way: t.way, Store: t.st.url(), Run: t.name, Root: t.w.root, State: filepath.Join(b.dir, "state", t.name),
				Profile: filepath.Join(b.s.Profiles, fmt.Sprintf("%s-%s-%s-%s.prof", t.w.name, t.way, t.st.name, t.st.scheme)),
			}
			if t.way == down {
				a.Root = t.target
				a.Run, _, _ = strings.Cut(strings.TrimPrefix(t.folder, bucketName+"/"), "/")
			}
			return child("engine", a, b.env(t.st))
		},
		ready: readyProgram,
	}
}

func engineJob(ctx context.Context, args json.RawMessage, _ io.Writer) error {
	var a engineArgs
	if err := json.Unmarshal(args, &a); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(a.Profile), 0o755); err != nil {
		return err
	}
	f, err := os.Create(a.Profile)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := pprof.StartCPUProfile(f); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	bucket, err := s3blob.Open(ctx, a.Store, s3blob.Options{})
	if err != nil {
		return err
	}
	spec := layout.Spec{Name: "bench", Step: "step-{step}", Required: []string{"*.dat"}, Marker: markerName, Settle: time.Millisecond}
	layouts, err := layout.Choose("bench", []layout.Spec{spec})
	if err != nil {
		return err
	}
	e, err := syncer.New(syncer.Config{Run: a.Run, Root: a.Root, StateDir: a.State, Bucket: bucket, StoreURL: a.Store, Layouts: layouts})
	if err != nil {
		return err
	}
	if a.Way == down {
		_, err = e.Restore(ctx, syncer.RestoreOptions{ReadOnly: true})
		return errors.Join(err, e.Close())
	}
	outcomes, err := e.Push(ctx)
	for _, o := range outcomes {
		if o.Stage != syncer.Committed {
			err = errors.Join(err, fmt.Errorf("%s: %s %v", o.Step, o.Stage, o.Reasons))
		}
	}
	return errors.Join(err, e.Close())
}
