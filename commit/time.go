package commit

import (
	"fmt"
	"strconv"
	"time"
)

// Time is a moment for people to read: RFC 3339, UTC, whole seconds. Nothing
// is ever ordered or decided by it.
type Time struct{ time.Time }

// At returns t in the form that the formats use.
func At(t time.Time) Time { return Time{t.UTC().Truncate(time.Second)} }

// MarshalJSON implements json.Marshaler.
func (t Time) MarshalJSON() ([]byte, error) {
	u := t.UTC()
	if y := u.Year(); y < 0 || y > 9999 {
		return nil, fmt.Errorf("time %v: the year is not of four digits", u)
	}
	return []byte(`"` + u.Format(time.RFC3339) + `"`), nil
}

// UnmarshalJSON implements json.Unmarshaler. It accepts any RFC 3339 time and
// keeps what MarshalJSON would write of it.
func (t *Time) UnmarshalJSON(data []byte) error {
	s, err := strconv.Unquote(string(data))
	if err != nil {
		return fmt.Errorf("time %.40s is not a string", data)
	}
	u, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return fmt.Errorf("time %.40q is not of the form 2006-01-02T15:04:05Z", s)
	}
	*t = At(u)
	return nil
}
