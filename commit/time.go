package commit

import "time"

// Time is a moment for people to read: RFC 3339, UTC, whole seconds. Nothing
// is ever ordered or decided by it.
type Time struct{ time.Time }

// At returns t in the form that the formats use.
func At(t time.Time) Time { return Time{t.UTC().Truncate(time.Second)} }

// MarshalJSON implements json.Marshaler.
func (t Time) MarshalJSON() ([]byte, error) {
	return []byte(`"` + t.UTC().Format(time.RFC3339) + `"`), nil
}
