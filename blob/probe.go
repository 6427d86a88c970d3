package blob

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// ProbeVerdict is what [Probe] found out about create-if-absent.
type ProbeVerdict int

// The verdicts.
const (
	ProbeUnsupported ProbeVerdict = iota // the store says that it cannot
	ProbeIgnored                         // the store says that it can, and lies: it must count as one that cannot
	ProbeWorks                           // it kept its word in every trial
)

// String is one word for people and metrics.
func (v ProbeVerdict) String() string {
	switch v {
	case ProbeWorks:
		return "works"
	case ProbeIgnored:
		return "ignored"
	}
	return "unsupported"
}

// ProbeResult is the outcome of a Probe.
type ProbeResult struct {
	Verdict ProbeVerdict
	Details string // one sentence for people: what was tried and what happened
}

const (
	probeWriters = 8                // concurrent creations of one key
	probeRounds  = 2                // of them
	probeTries   = 3                // of the whole, and of one key, when an answer is unclear
	probeCleanup = 30 * time.Second // time for deleting the scratch keys
)

// Probe finds out whether the store keeps create-if-absent, which some refuse,
// some ignore without a word, and some keep only while nobody else writes
// (protocol R9). It creates scratch keys below prefix, one after the other and
// eight at once, reads them back, and deletes them. prefix is empty or ends in a
// slash.
//
// An error means that nothing was found out: the store could not be reached, or
// denied access. A store that passes has shown no fault, which is not a proof:
// one with several gateways may still let two writers on different ones win.
func Probe(ctx context.Context, b Bucket, prefix string) (ProbeResult, error) {
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		return ProbeResult{}, Errorf(ErrUnsupported, "probe", prefix, "the prefix does not end in a slash")
	}
	var err error
	for range probeTries {
		p := &probe{b: b, prefix: prefix + "probe-" + rand.Text() + "/"}
		var result ProbeResult
		result, err = p.run(ctx)
		p.clean(ctx)
		if err == nil {
			return result, nil
		}
		if !Ambiguous(err) || ctx.Err() != nil {
			break
		}
	}
	return ProbeResult{}, fmt.Errorf("probe create-if-absent: %w", err)
}

type probe struct {
	b      Bucket
	prefix string
	keys   []string
}

func (p *probe) key(name string) string {
	key := p.prefix + name
	p.keys = append(p.keys, key)
	return key
}

// verdict is returned as an error by the trials to end them.
type verdict ProbeResult

func (v *verdict) Error() string { return v.Details }

func found(v ProbeVerdict, format string, args ...any) error {
	return &verdict{v, fmt.Sprintf(format, args...)}
}

func (p *probe) run(ctx context.Context) (ProbeResult, error) {
	err := p.sequential(ctx)
	for round := 0; err == nil && round < probeRounds; round++ {
		err = p.concurrent(ctx, p.key(fmt.Sprintf("race-%d", round)))
	}
	if v, ok := errors.AsType[*verdict](err); ok {
		return ProbeResult(*v), nil
	}
	if err != nil {
		return ProbeResult{}, err
	}
	return ProbeResult{ProbeWorks, fmt.Sprintf("of %d concurrent creations of one key exactly one won, %d times out of %d", probeWriters, probeRounds, probeRounds)}, nil
}

// create puts a body if the key is absent, and says whether it did.
func (p *probe) create(ctx context.Context, key string, body []byte) (bool, error) {
	crc := CRC32C(body)
	_, err := p.b.Put(ctx, key, Bytes(body), &PutOptions{IfAbsent: true, CRC32C: &crc})
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, ErrPrecondition):
		return false, nil
	case errors.Is(err, ErrUnsupported):
		return false, found(ProbeUnsupported, "the store refuses create-if-absent: %v", err)
	}
	return false, err
}

// again tries to create a key that is there. A store may let a key be written
// once a second, or deny to overwrite anything, before it looks at the condition.
// So a key whose answer is unclear is left alone for a while, and after some
// tries such an answer counts as a refusal: what the key holds tells the rest.
func (p *probe) again(ctx context.Context, key string, body []byte) (created bool, err error) {
	for try := range probeTries {
		if try > 0 {
			select {
			case <-time.After(createPause(2, ErrThrottled)):
			case <-ctx.Done():
				return false, context.Cause(ctx)
			}
		}
		if created, err = p.create(ctx, key, body); !Ambiguous(err) || ctx.Err() != nil {
			break
		}
	}
	if ctx.Err() == nil && (Ambiguous(err) || errors.Is(err, ErrDenied)) {
		err = nil
	}
	return created, err
}

// holds reads what the key holds; absent is nil.
func (p *probe) holds(ctx context.Context, key string) ([]byte, error) {
	body, err := ReadAll(ctx, p.b, key, 1<<10)
	if errors.Is(err, ErrNotExist) {
		return nil, nil
	}
	return body, err
}

func token() []byte { return []byte("ckptsync probe, may be deleted: " + rand.Text() + "\n") }

func (p *probe) sequential(ctx context.Context) error {
	key, first, second := p.key("seq"), token(), token()
	created, err := p.create(ctx, key, first)
	if Ambiguous(err) && ctx.Err() == nil {
		if body, rerr := p.holds(ctx, key); rerr == nil && bytes.Equal(body, first) {
			created, err = true, nil
		}
	}
	if err != nil {
		return err
	}
	if !created {
		return found(ProbeIgnored, "the store says that a key exists that nobody has ever written")
	}
	created, err = p.again(ctx, key, second)
	if err != nil {
		return err
	}
	body, err := p.holds(ctx, key)
	switch {
	case err != nil:
		return err
	case created:
		return found(ProbeIgnored, "the store created a key that existed: it ignores the condition")
	case !bytes.Equal(body, first):
		return found(ProbeIgnored, "the store refused to create a key that existed, and replaced its content all the same")
	}
	return nil
}

// concurrent lets many create one key at once. One whose answer is unclear has
// won if its body is there. One that is denied has lost, if another has won.
func (p *probe) concurrent(ctx context.Context, key string) error {
	var bodies [probeWriters][]byte
	var won [probeWriters]bool
	var errs [probeWriters]error
	var wg sync.WaitGroup
	start := make(chan struct{})
	for w := range bodies {
		bodies[w] = token()
		wg.Go(func() {
			<-start
			won[w], errs[w] = p.create(ctx, key, bodies[w])
		})
	}
	close(start)
	wg.Wait()
	body, err := p.holds(ctx, key)
	if err != nil {
		return err
	}
	winners, there := 0, false
	for w := range bodies {
		if err := errs[w]; err != nil && !Ambiguous(err) && (body == nil || !errors.Is(err, ErrDenied)) {
			return err
		}
		same := bytes.Equal(body, bodies[w])
		if won[w] || errs[w] != nil && same {
			winners++
			there = there || same
		}
	}
	switch {
	case winners > 1:
		return found(ProbeIgnored, "%d of %d concurrent creations of one key won", winners, probeWriters)
	case winners == 1 && !there:
		return found(ProbeIgnored, "the content of a key is not that of the only one of %d creators who won", probeWriters)
	case winners == 0:
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
		return found(ProbeIgnored, "of %d concurrent creations of one key none won", probeWriters)
	}
	return nil
}

// clean deletes the scratch keys, also when ctx is done. What cannot be deleted
// (a store may forbid it) does no harm: the names say what they are.
func (p *probe) clean(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeCleanup)
	defer cancel()
	for _, key := range p.keys {
		_ = p.b.Delete(ctx, key)
	}
}
