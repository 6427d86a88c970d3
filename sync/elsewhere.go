package syncer

import "github.com/ckptsync/ckptsync/sync/layout"

// elsewhereEvery is how many looks pass from one look for steps elsewhere to
// the next, while there is none under the root. At first they are closer
// together: the trainer's first save may go to the wrong place.
const elsewhereEvery = 64

// elsewhere says where the steps seem to be, if none is under the root.
func (e *Engine) elsewhere(steps []layout.Step) {
	n := e.looks.Load()
	if soon := n < elsewhereEvery && n&(n-1) == 0; len(steps) > 0 || e.only != "" || n%elsewhereEvery != 0 && !soon {
		return
	}
	if text := e.finder.Elsewhere(e.cfg.Root, e.cfg.fsys); text != "" {
		e.notice(".", "no step is under the root: "+text)
	}
}
