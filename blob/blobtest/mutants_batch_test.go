package blobtest_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
)

// batchMutants break what is said of batches of deletions; the test that must
// notice is named after the colon.
var batchMutants = map[string]func(m *memblob.Bucket, ctx context.Context, keys []string) map[string]error{
	"stops at the first failure:DeleteBatchBadKeys": func(m *memblob.Bucket, ctx context.Context, keys []string) map[string]error {
		for _, key := range keys {
			if err := m.Delete(ctx, key); err != nil {
				return map[string]error{key: err}
			}
		}
		return nil
	},
	"forgets the failures:DeleteBatchBadKeys": func(m *memblob.Bucket, ctx context.Context, keys []string) map[string]error {
		m.DeleteBatch(ctx, keys)
		return nil
	},
	"deletes what is below:DeleteBatch": func(m *memblob.Bucket, ctx context.Context, keys []string) map[string]error {
		for _, key := range keys {
			for info := range m.List(ctx, key) {
				m.Delete(ctx, info.Key)
			}
		}
		return nil
	},
	"fails where nothing is:DeleteBatch": func(m *memblob.Bucket, ctx context.Context, keys []string) map[string]error {
		failed := m.DeleteBatch(ctx, nil)
		for _, key := range keys {
			if _, err := m.Stat(ctx, key); err != nil {
				failed[key] = err
				continue
			}
			m.Delete(ctx, key)
		}
		return failed
	},
	"takes a hundred:DeleteBatchManyO38": func(m *memblob.Bucket, ctx context.Context, keys []string) map[string]error {
		return m.DeleteBatch(ctx, keys[:min(len(keys), 100)])
	},
	"escapes keys:DeleteBatchOddKeys": func(m *memblob.Bucket, ctx context.Context, keys []string) map[string]error {
		for _, key := range keys {
			m.Delete(ctx, strings.ReplaceAll(key, "&", "&amp;"))
		}
		return nil
	},
	"says gone when cancelled:DeleteBatchCancelled": func(m *memblob.Bucket, ctx context.Context, keys []string) map[string]error {
		if ctx.Err() != nil {
			return nil
		}
		return m.DeleteBatch(ctx, keys)
	},
}

type batchMutant struct {
	*memblob.Bucket
	batch func(m *memblob.Bucket, ctx context.Context, keys []string) map[string]error
}

func (m batchMutant) DeleteBatch(ctx context.Context, keys []string) map[string]error {
	return m.batch(m.Bucket, ctx, keys)
}

const batchMutantEnv = "BLOBTEST_BATCH_MUTANT"

// TestBatchMutant is the suite on one mutant, for TestSuiteNoticesBatches.
func TestBatchMutant(t *testing.T) {
	batch := batchMutants[os.Getenv(batchMutantEnv)]
	if batch == nil {
		batch = (*memblob.Bucket).DeleteBatch
	}
	blobtest.Run(t, func(*testing.T) blob.Bucket {
		return batchMutant{memblob.New(), batch}
	}, blobtest.Options{NoPlaceholder: "another test has them"})
}

// TestSuiteNoticesBatches is TestSuiteNotices for batches of deletions.
func TestSuiteNoticesBatches(t *testing.T) {
	for name := range batchMutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, test, _ := strings.Cut(name, ":")
			cmd := exec.Command(os.Args[0], "-test.run=^TestBatchMutant$/^"+test+"$", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), batchMutantEnv+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Errorf("%s does not notice", test)
			} else if !strings.Contains(string(out), "--- FAIL: TestBatchMutant/"+test) {
				t.Errorf("%s did not fail in the expected way:\n%s", test, out[:min(len(out), 3000)])
			}
		})
	}
}
