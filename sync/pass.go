package syncer

import "time"

// Limits of one pass: a step that something writes to for ever must not keep
// it from ending.
const (
	maxChanges  = 5  // how often a step may change while it is read
	maxPatience = 10 // settle times that one may take to settle
	// maxJointPatience is how long it is waited for other nodes.
	maxJointPatience = 10 * time.Minute
)

// pass is what one Push remembers of the steps.
type pass struct {
	joint    time.Duration // how long it is waited for other nodes
	newest   bool          // to commit the newest step alone
	tried    map[*life]int
	settling map[*life]time.Time // since when it is waited for
}

// patient says which steps are still waited for.
func (p *pass) patient(e *Engine) func(*life) bool {
	now := e.cfg.now()
	return func(l *life) bool {
		since, ok := p.settling[l]
		if !ok {
			p.settling[l], since = now, now
		}
		if l.waits {
			return now.Sub(since) < p.joint
		}
		return now.Sub(since) < maxPatience*max(e.settleTime(l.verdict), time.Second)
	}
}

// due is the step that is to be published next, if one is.
func (e *Engine) due(p *pass) *life {
	if p.newest && e.untilSettled(p.patient(e)) >= 0 {
		return nil // it may be the newest
	}
	return e.next(func(l *life) bool { return p.tried[l] < maxChanges })
}
