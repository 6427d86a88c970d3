package commit

import (
	"encoding/json"
	"errors"
	"fmt"
)

// validate checks an attempt, whoever wrote it.
func (a *Attempt) validate() error {
	switch {
	case a.Attempt < 1 || a.Attempt > maxNumber:
		return invalid("attempt %d is not in 1 … %d", a.Attempt, maxNumber)
	case a.Nodes < 1 || a.Nodes > maxNodes:
		return invalid("attempt %d: %d nodes, not in 1 … %d", a.Attempt, a.Nodes, maxNodes)
	case a.Declared && a.Rank != a.Attempt:
		return invalid("attempt %d: declared, but its rank is %d and not its number", a.Attempt, a.Rank)
	case a.Rank < 0 || !a.Declared && a.Rank >= a.Attempt:
		return invalid("attempt %d: rank %d", a.Attempt, a.Rank)
	case a.Base == nil && !a.Declared && a.Rank != 0:
		return invalid("attempt %d: undeclared and without a base, but its rank is %d and not 0", a.Attempt, a.Rank)
	case a.Fresh && (a.Base != nil || !a.Declared):
		return invalid("attempt %d: fresh, but it has a base or is not declared", a.Attempt)
	case a.Base == nil:
		return nil
	}
	if err := a.Base.validate(); err != nil {
		return errors.Join(invalid("attempt %d: its base is no commit", a.Attempt), err)
	}
	if a.Base.Attempt >= a.Attempt {
		return invalid("attempt %d: its base %s is not of an earlier attempt", a.Attempt, a.Base)
	}
	if !a.Declared && a.Rank > a.Base.Attempt {
		return invalid("attempt %d: undeclared, of rank %d, above that of its base %s", a.Attempt, a.Rank, a.Base)
	}
	return nil
}

func (c *Claim) validate() error {
	if c.Attempt < 1 || c.Attempt > maxNumber {
		return invalid("claim on attempt %d", c.Attempt)
	}
	return validateNode(c.Node, c.Claim)
}

func (r *Ready) validate() error {
	if r.Attempt < 1 || r.Attempt > maxNumber {
		return invalid("readiness in attempt %d", r.Attempt)
	}
	return validateNode(r.Node, r.Claim)
}

func (s *Start) validate() error {
	if s.Attempt < 1 || s.Attempt > maxNumber {
		return invalid("start of attempt %d", s.Attempt)
	}
	if s.Decision != StartGo && s.Decision != StartVoid {
		return invalid("start of attempt %d: decision %.20q, not go or void", s.Attempt, s.Decision)
	}
	return nil
}

func (v *Vote) validate() error {
	if err := v.ID.validate(); err != nil {
		return err
	}
	if len(v.Parts) < 1 || len(v.Parts) > maxNodes || v.Node >= len(v.Parts) {
		return invalid("vote of node %d on commit %s: it names %d parts", v.Node, v.ID, len(v.Parts))
	}
	return validateNode(v.Node, v.Claim)
}

func (t *Tomb) validate() error { return t.ID.validate() }

func (m *Mark) validate() error {
	if !m.Word.valid() {
		return invalid("mark with the unknown word %.20q", string(m.Word))
	}
	if m.Whole && (m.Step != 0 || m.Revision != 0 || m.Word != Excluded) {
		return invalid("mark on attempt %d as a whole: only %q, without a step or revision", m.Attempt, Excluded)
	}
	return m.ID.validate()
}

func (r *Run) validate() error {
	if err := CheckRun(r.Run); err != nil {
		return invalid("%w", err)
	}
	switch e := r.Encryption; {
	case r.Format == FormatRun && e == nil:
	case r.Format == FormatRun, e == nil:
		return invalid("format %s goes with \"encryption\", and no other does", FormatSealed)
	case e.Scheme != SchemeAge:
		return fmt.Errorf("%w: encrypted as %.60q, this ckptsync knows %s: use a newer one here", ErrFormat, e.Scheme, SchemeAge)
	case !validKeyID(e.Key):
		return invalid("%.60q names no key", e.Key)
	}
	return nil
}

func (w *WrappedKey) validate() error {
	if err := CheckRun(w.Run); err != nil {
		return invalid("%w", err)
	}
	if !validKeyID(w.Key) {
		return invalid("%.60q names no key", w.Key)
	}
	return nil
}

// decodeRun decodes run.json of either format.
func decodeRun(body []byte) (*Run, error) {
	var head formatField
	format := FormatRun
	if json.Unmarshal(body, &head) == nil && head.Format != nil && *head.Format == FormatSealed {
		format = FormatSealed
	}
	return parse[Run](body, format, maxSmall)
}
