package syncer

import "github.com/ckptsync/ckptsync/sync/layout"

// elsewhereEvery is how many looks pass from one look for steps elsewhere to
// the next, while there is none under the root.
const elsewhereEvery = 64

// elsewhere says where the steps seem to be, if none is under the root.
func (e *Engine) elsewhere(steps []layout.Step) {
	if len(steps) > 0 || e.only != "" || e.looks.Load()%elsewhereEvery != 0 {
		return
	}
	if text := e.finder.Elsewhere(e.cfg.Root, e.cfg.fsys); text != "" {
		e.notice(".", "no step is under the root: "+text)
	}
}
