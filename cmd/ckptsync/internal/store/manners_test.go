package store

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/blob/rateblob"
	"github.com/ckptsync/ckptsync/blob/retryblob"
)

// TestBandwidth: without a limit nothing stands between the caller's bytes and
// the driver.
func TestBandwidth(t *testing.T) {
	for _, s := range []rateblob.Schedule{nil, rateblob.Always(rateblob.Limit{Up: 1 << 20})} {
		b, closeStore, err := Open(t.Context(), parse(t, "mem://"), Options{Bandwidth: s})
		if err != nil {
			t.Fatal(err)
		}
		defer closeStore()
		if _, shaped := blob.As[*rateblob.Bucket](b); shaped != (s != nil) {
			t.Errorf("schedule %v: shaped %v", s, shaped)
		}
	}
}

// TestLongPatience: it alone bounds the tries, however many they are.
func TestLongPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := blobtest.NewFaulty(memblob.New(), 1)
		down.Add(&blobtest.Rule{Do: blobtest.Fail(blob.ErrTemporary)})
		began := time.Now()
		patient := retryblob.New(down, retries(Options{Patience: 10 * time.Minute, Log: slog.New(slog.DiscardHandler)}))
		if _, err := patient.Stat(t.Context(), "x"); !errors.Is(err, blob.ErrTemporary) {
			t.Error(err)
		}
		if spent := time.Since(began); spent < 8*time.Minute || spent > 10*time.Minute {
			t.Errorf("patient for %v, want about 10 minutes", spent)
		}
	})
}

// TestStallIsPassedOn: a store that takes a request and never answers is given
// up by what the user said.
func TestStallIsPassedOn(t *testing.T) {
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_ACCESS_KEY_ID", "k")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer s.Close()
	b, closeStore, err := Open(t.Context(), parse(t, "s3://b/p?region=r&endpoint="+s.URL), Options{Stall: 20 * time.Millisecond, Patience: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore()
	if _, err := b.Stat(t.Context(), "x"); !errors.Is(err, blob.ErrTemporary) || !strings.Contains(err.Error(), "stalled") {
		t.Error(err)
	}
}

// TestFailuresAreToldOfNowAndThen: of the first at once, of many not each.
func TestFailuresAreToldOfNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		r := &reporter{log: slog.New(slog.NewTextHandler(io.Writer(&logged), nil))}
		lines := func() int { return strings.Count(logged.String(), "\n") }
		for i, want := range []int{1, 1, 1, 2, 2, 2} { // every other second
			for range 10 {
				r.failed(retryblob.Event{Op: "list", Key: "k", Try: 3, Wait: time.Second, Err: errors.New("refused")})
			}
			if lines() != want {
				t.Fatalf("after %d seconds: %d lines, want %d\n%s", 2*i, lines(), want, logged.String())
			}
			time.Sleep(2 * time.Second)
		}
		if !strings.Contains(logged.String(), "refused") || !strings.Contains(logged.String(), "unsaid=") {
			t.Error(logged.String())
		}
	})
}
