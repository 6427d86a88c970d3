package commit_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"aead.dev/minisign"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/commit/committest"
)

func newSigner(t *testing.T) *commit.Signer {
	t.Helper()
	s, err := commit.NewSigner()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// signedRun is a run whose store signs.
func signedRun(t *testing.T, s *commit.Signer) *committest.Run {
	t.Helper()
	r := committest.In(t, memblob.New(), "exp1")
	var err error
	if r.Store, err = commit.NewStore(r.Bucket, "exp1", commit.SignWith(s)); err != nil {
		t.Fatal(err)
	}
	return r
}

func keysUnder(t *testing.T, b blob.Bucket, prefix string) []string {
	t.Helper()
	var out []string
	for info, err := range b.List(t.Context(), prefix) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, info.Key)
	}
	return out
}

// What is in the bucket is what the owner of the key committed, or is refused.
func TestSignedMarker(t *testing.T) {
	ctx := t.Context()
	ours, theirs := newSigner(t), newSigner(t)
	r := signedRun(t, ours)
	r.Declare(nil)
	id, other := committest.ID(1, 500), committest.ID(1, 400)
	r.Commit(id, "step-500", map[string]string{"w": "five"})
	r.Commit(other, "step-400", map[string]string{"w": "four"})
	trusting := r.Store.Trusting(theirs.Public(), ours.Public())
	if _, _, err := trusting.Load(ctx, id); err != nil {
		t.Fatalf("as it was signed: %v", err)
	}
	if _, err := r.Store.Trusting(theirs.Public()).Marker(ctx, id); !errors.Is(err, commit.ErrUntrusted) {
		t.Errorf("of a key that did not sign it: %v", err)
	}
	if m, err := r.Store.Marker(ctx, id); err != nil || m.ID != id {
		t.Errorf("without keys: %v", err)
	}

	marker, key := get(t, r.Bucket, "exp1/commits/"+id.String()+".json"), "exp1/commits/"+id.String()+".json"
	put(t, r.Bucket, key, strings.Replace(marker, `"step-500"`, `"step-600"`, 1))
	_, err := trusting.Marker(ctx, id)
	wantErr(t, err, commit.ErrUntrusted, "changed after it was signed")
	put(t, r.Bucket, key, get(t, r.Bucket, "exp1/commits/"+other.String()+".json"))
	_, err = trusting.Marker(ctx, id)
	wantErr(t, err, commit.ErrInvalid, "by its content it is the marker of commit "+other.String())
	put(t, r.Bucket, key, marker)

	part := keysUnder(t, r.Bucket, "exp1/parts/"+id.String()+"/")[0]
	put(t, r.Bucket, part, strings.Replace(get(t, r.Bucket, part), `"stamp"`, `"stomp"`, 2))
	_, _, err = trusting.Load(ctx, id)
	wantErr(t, err, blob.ErrCorrupt, "are not the")
}

// A commit that somebody adds who has no key, or another one.
func TestUnsignedMarker(t *testing.T) {
	ctx := t.Context()
	ours := newSigner(t)
	r := committest.New(t)
	r.Declare(nil)
	id := committest.ID(1, 7)
	r.Commit(id, "step-7", map[string]string{"w": "seven"})
	trusting := r.Store.Trusting(ours.Public())
	_, err := trusting.Marker(ctx, id)
	wantErr(t, err, commit.ErrUntrusted, ours.Public().ID())

	theirs := newSigner(t)
	if err := r.Store.Sign(ctx, id, theirs); err != nil {
		t.Fatal(err)
	}
	if _, err := trusting.Marker(ctx, id); !errors.Is(err, commit.ErrUntrusted) {
		t.Errorf("signed by another key: %v", err)
	}
	sig := keysUnder(t, r.Bucket, "exp1/signatures/")[0]
	forged := strings.Replace(sig, theirs.Public().ID(), ours.Public().ID(), 1)
	put(t, r.Bucket, forged, get(t, r.Bucket, sig))
	if _, err := trusting.Marker(ctx, id); !errors.Is(err, commit.ErrUntrusted) {
		t.Errorf("with another key's signature under our key's name: %v", err)
	}
	for _, k := range []string{sig, forged} {
		if err := r.Bucket.Delete(ctx, k); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := r.Store.Sign(ctx, id, ours); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := trusting.Marker(ctx, id); err != nil {
		t.Errorf("signed: %v", err)
	}
	if keys := keysUnder(t, r.Bucket, "exp1/signatures/"); len(keys) != 1 {
		t.Errorf("signatures of one marker by one key: %q", keys)
	}
}

// Nothing is ever committed without its signature: that is written first.
func TestSignatureComesFirst(t *testing.T) {
	ours := newSigner(t)
	r := signedRun(t, ours)
	r.Declare(nil)
	id := committest.ID(1, 1)
	m := r.Manifest(id, "step-1", 0, map[string]string{"w": "one"})
	ref, err := r.Store.PutManifest(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	marker, err := commit.NewMarker("exp1", []*commit.Manifest{m}, []commit.PartRef{ref})
	if err != nil {
		t.Fatal(err)
	}
	order := &orderBucket{Bucket: r.Bucket}
	s, _ := commit.NewStore(order, "exp1", commit.SignWith(ours))
	if err := s.PutMarker(t.Context(), marker); err != nil {
		t.Fatal(err)
	}
	if len(order.put) != 2 || !strings.Contains(order.put[0], "/signatures/") || !strings.Contains(order.put[1], "/commits/") {
		t.Errorf("written: %q", order.put)
	}
	sig := get(t, r.Bucket, order.put[0])
	pub := ours.Public()
	var key minisign.PublicKey
	if err := key.UnmarshalText([]byte(pub.String())); err != nil {
		t.Fatal(err)
	}
	if !minisign.Verify(key, []byte(get(t, r.Bucket, order.put[1])), []byte(sig)) {
		t.Errorf("minisign does not verify %q", sig)
	}
}

func TestKeys(t *testing.T) {
	s := newSigner(t)
	text, err := s.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	again, err := commit.ParseSigner(text, "")
	if err != nil || again.Public().String() != s.Public().String() {
		t.Errorf("a key and its text: %v", err)
	}
	k, err := commit.ParsePublicKey("untrusted comment: x\n" + s.Public().String() + "\n")
	if err != nil || k.ID() != s.Public().ID() || len(k.ID()) != 16 {
		t.Errorf("%v: %v", k, err)
	}
	for _, bad := range []string{"", "RW", "hello", string(text)} {
		if _, err := commit.ParsePublicKey(bad); err == nil {
			t.Errorf("%.20q was taken for a public key", bad)
		}
	}
	for _, bad := range []string{"", "RW", s.Public().String()} {
		if _, err := commit.ParseSigner([]byte(bad), ""); err == nil {
			t.Errorf("%.20q was taken for a secret key", bad)
		}
	}
}

// orderBucket notes what is put.
type orderBucket struct {
	blob.Bucket
	put []string
}

func (b *orderBucket) Put(ctx context.Context, key string, src blob.Source, o *blob.PutOptions) (blob.Info, error) {
	b.put = append(b.put, key)
	return b.Bucket.Put(ctx, key, src, o)
}
