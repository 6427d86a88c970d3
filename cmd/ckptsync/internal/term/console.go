package term

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/term"
)

// console draws the frames of the progress bars at the bottom of a terminal
// and prints lines above them at once. (The library's own writer keeps such
// lines until its next frame, and loses them if there is none.)
type console struct {
	out io.Writer

	pending bytes.Buffer // the frame being composed, by the library's goroutine

	mu    sync.Mutex
	frame []byte // the frame that is on the screen
	lines int    // how many lines it has
	shut  bool
}

// Write and ReadFrom compose the next frame.
func (c *console) Write(p []byte) (int, error)             { return c.pending.Write(p) }
func (c *console) ReadFrom(r io.Reader) (n int64, e error) { return c.pending.ReadFrom(r) }

// IsTerminal makes the library ask for the size.
func (c *console) IsTerminal() bool { return true }

// GetTermSize returns the terminal's size, or a common one if it is not known.
func (c *console) GetTermSize() (width, height int, err error) {
	if f, ok := c.out.(*os.File); ok {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 {
			return w, h, nil
		}
	}
	return 80, 24, nil
}

// Flush replaces the frame on the screen by the composed one.
func (c *console) Flush(lines int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := bytes.Clone(c.pending.Bytes())
	c.pending.Reset()
	if c.shut {
		return nil
	}
	_, err := c.out.Write(append(c.erase(), next...))
	c.frame, c.lines = next, lines
	return err
}

// Print writes whole lines above the frame.
func (c *console) Print(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.out.Write(append(append(c.erase(), p...), c.frame...))
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// Shut takes the frame off the screen, for good.
func (c *console) Shut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.Write(c.erase()) //nolint:errcheck // a terminal that is gone needs no cleaning
	c.frame, c.lines, c.shut = nil, 0, true
}

// erase is what takes the frame off the screen.
func (c *console) erase() []byte {
	if c.lines == 0 {
		return nil
	}
	return fmt.Appendf(nil, "\x1b[%dA\x1b[J", c.lines)
}

// printer is console's Print as a writer.
type printer struct{ c *console }

func (p printer) Write(b []byte) (int, error) { return p.c.Print(b) }
