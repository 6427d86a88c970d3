package hold

import (
	"fmt"
	"os"
)

// reopenFile opens again what f has open, whether or not it still has a name.
func reopenFile(f *os.File) (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}
