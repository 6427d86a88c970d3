package commit

import "slices"

// Missing says what exact resume from a commit lacks, by the word of its
// parts: nothing, if the marker says that it resumes exactly. One node of
// several says so of what the others have as well. So what counts is what
// every part names and no part has; and where their words do not meet, all
// that any of them names and none has.
func Missing(m *Marker, parts []*Manifest) []string {
	if m.Resume == ResumeExact {
		return nil
	}
	there := map[string]bool{}
	if len(parts) > 1 {
		for _, p := range parts {
			for i := range p.Files {
				there[p.Files[i].Path] = true
			}
		}
	}
	var all, agreed []string
	for _, p := range parts {
		for _, what := range p.Missing {
			if there[m.Name+"/"+what] || slices.Contains(all, what) {
				continue
			}
			all = append(all, what)
			if !slices.ContainsFunc(parts, func(q *Manifest) bool { return !slices.Contains(q.Missing, what) }) {
				agreed = append(agreed, what)
			}
		}
	}
	if len(agreed) > 0 {
		return agreed
	}
	return all
}
