package commit

import (
	"errors"
	"fmt"
)

// Errors of this package, for errors.Is. Whatever else its functions return is
// an error of the bucket (package blob): blob.ErrNotExist for an absent
// object, blob.ErrCorrupt for a manifest whose bytes are not those that the
// marker names.
var (
	// ErrFormat: an object of another kind, or written by a newer ckptsync.
	ErrFormat = errors.New("format not understood")
	// ErrInvalid: an object that breaks the rules of its format: damaged,
	// edited by hand or hostile. It is refused whole.
	ErrInvalid = errors.New("invalid object")
	// ErrEncrypted: the run is encrypted, and what would open it is not there. It
	// comes with blob.ErrDenied: nothing is known of what is in the run.
	ErrEncrypted = errors.New("the run is encrypted")
	// ErrConflict: under that name there is other content than ours.
	ErrConflict = errors.New("conflict")
)

// invalid makes an ErrInvalid of the formatted text.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}

// ManifestExistsError is returned by PutManifest when another manifest is
// under that name: this node sealed that revision before. It matches
// ErrConflict.
type ManifestExistsError struct {
	Manifest *Manifest // what is there; nil if it cannot be understood
	Ref      PartRef   // of what is there
	Err      error     // why Manifest is nil
}

func (e *ManifestExistsError) Error() string {
	if e.Manifest == nil {
		return fmt.Sprintf("another manifest is there, of node %d, claim %d, and cannot be read: %v", e.Ref.Node, e.Ref.Claim, e.Err)
	}
	return fmt.Sprintf("another manifest is there: commit %s, node %d, claim %d", e.Manifest.ID, e.Ref.Node, e.Ref.Claim)
}

// Is makes errors.Is(err, ErrConflict) true.
func (e *ManifestExistsError) Is(target error) bool { return target == ErrConflict }

// Unwrap returns why the other manifest cannot be read, if so.
func (e *ManifestExistsError) Unwrap() error { return e.Err }
