package syncer

// Idle reports whether no complete step waits here to be committed: the root
// may go, and nothing is lost that was held. It may be called at any time.
func (e *Engine) Idle() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.lives {
		if l.hold != nil {
			return false
		}
	}
	return true
}
