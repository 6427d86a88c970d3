package upload

import "context"

// lookahead is how many files' uploads are continued before it is their turn. To
// continue one is mostly to wait for a list of its parts, and of a step that was
// sent ahead there is little to do in between.
const lookahead = 32

// beginner begins large files in order.
type beginner struct {
	u     *Uploader
	ctx   context.Context
	files []File
	order []int
	log   Log
	next  int // place in order up to which uploads are being continued
	early []chan begun
}

type begun struct {
	l   *large
	err error
}

func (u *Uploader) newBeginner(ctx context.Context, files []File, order []int, log Log) *beginner {
	return &beginner{u: u, ctx: ctx, files: files, order: order, log: log, early: make([]chan begun, len(order))}
}

// begin is Uploader.begin of the file at that place of the order.
func (b *beginner) begin(at int) (*large, error) {
	for b.next = max(b.next, at); b.next < min(at+lookahead, len(b.order)); b.next++ {
		f := &b.files[b.order[b.next]]
		if f.UploadID == "" || f.Ident.Size <= f.Chunk || f.stopped() {
			continue
		}
		ch := make(chan begun, 1)
		b.early[b.next] = ch
		go func() {
			l, err := b.u.begin(b.ctx, f, b.log)
			ch <- begun{l, err}
		}()
	}
	if ch := b.early[at]; ch != nil {
		b.early[at] = nil
		r := <-ch
		return r.l, r.err
	}
	return b.u.begin(b.ctx, &b.files[b.order[at]], b.log)
}

// close waits for what was begun and is not used, and lets go of it.
func (b *beginner) close() {
	for _, ch := range b.early {
		if ch == nil {
			continue
		}
		if r := <-ch; r.err == nil {
			r.l.file.Close()
		}
	}
}
