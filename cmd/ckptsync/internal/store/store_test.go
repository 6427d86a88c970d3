package store

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/meterblob"
	"github.com/ckptsync/ckptsync/blob/retryblob"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
)

func parse(t *testing.T, url string) config.Store {
	t.Helper()
	s, err := config.ParseStore(url)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOpenADirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a store, 50% full")
	url := "file://" + filepath.Dir(dir) + "/a%20store,%2050%25%20full"
	if _, _, err := Open(t.Context(), parse(t, url), Options{}); err == nil || errors.Is(err, blob.ErrNotExist) {
		t.Fatalf("a store that is not there: %v", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	counted := 0
	b, closeStore, err := Open(t.Context(), parse(t, url), Options{Count: func(meterblob.Event) { counted++ }})
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore()
	if _, ok := b.(*retryblob.Bucket); !ok {
		t.Errorf("%T is outermost, not the retries", b)
	}
	if _, err := b.Put(t.Context(), "r/x", blob.Bytes("data"), nil); err != nil {
		t.Fatal(err)
	}
	if got, err := blob.ReadAll(t.Context(), b, "r/x", 10); err != nil || !bytes.Equal(got, []byte("data")) {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "r", "x")); err != nil {
		t.Errorf("not in the directory that the URL names: %v", err)
	}
	if counted == 0 {
		t.Error("nothing was counted")
	}
	if d, ok := blob.As[blob.Describer](b); !ok || d.Location("r/x") != url+"/r/x" {
		t.Errorf("the decorators hide what the driver can do: %v", ok)
	}
}

func TestUnsupported(t *testing.T) {
	t.Setenv("AZURE_STORAGE_ACCOUNT", "") // without which azblob:// names nothing
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", "")
	for _, url := range []string{"gs://b?nonesuch=1", "azblob://c/p?nonesuch=1", "azblob://c/p", "s3://b?nonesuch=1", "file:///d?nonesuch=1"} {
		_, _, err := Open(t.Context(), parse(t, url), Options{})
		if un, ok := errors.AsType[*UnsupportedError](err); !ok {
			t.Errorf("%s: %v", url, err)
		} else if un.Unwrap() == nil {
			t.Errorf("%s: no reason", url)
		}
	}
}

func TestOpenCloudsAsksNothing(t *testing.T) {
	t.Setenv("AZURE_STORAGE_KEY", "a2V5")
	for _, url := range []string{"gs://b/p?endpoint=http://127.0.0.1:1", "azblob://c/p?storage_account=a&endpoint=http://127.0.0.1:1/a"} {
		b, closeStore, err := Open(t.Context(), parse(t, url), Options{})
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		defer closeStore()
		if _, ok := blob.As[blob.UploadLister](b); !ok {
			t.Errorf("%s: the decorators hide what the driver can do", url)
		}
	}
}

func TestOpenS3AsksNothing(t *testing.T) {
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	b, closeStore, err := Open(t.Context(), parse(t, "s3://b/p?region=r&endpoint=http://127.0.0.1:1"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore()
	if _, ok := blob.As[blob.UploadLister](b); !ok {
		t.Error("the decorators hide what the driver can do")
	}
}

// A store that cannot be reached is given up on after the patience, with a
// line for every try.
func TestPatience(t *testing.T) {
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_ACCESS_KEY_ID", "k")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
	var logged bytes.Buffer
	b, closeStore, err := Open(t.Context(), parse(t, "s3://b/p?region=r&endpoint=http://127.0.0.1:1"), Options{
		Patience: time.Second, Log: slog.New(slog.NewTextHandler(&logged, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore()
	began := time.Now()
	if _, err := b.Stat(t.Context(), "x"); !errors.Is(err, blob.ErrTemporary) {
		t.Errorf("%v", err)
	}
	if spent := time.Since(began); spent > time.Minute {
		t.Errorf("patient for %v", spent)
	}
	if !bytes.Contains(logged.Bytes(), []byte("trying again")) {
		t.Errorf("logged: %s", logged.String())
	}
}
