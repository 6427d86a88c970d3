package supervise

import (
	"strconv"
	"strings"
)

// Resume is what training goes on from.
type Resume struct {
	Path string // of the restored step; empty on a first start
	Step int64
}

// step is the step's number as text, empty if there is none.
func (r Resume) step() string {
	if r.Path == "" {
		return ""
	}
	return strconv.FormatInt(r.Step, 10)
}

// Environ is env with CKPTSYNC_RESUME_PATH and CKPTSYNC_RESUME_STEP, which are
// empty if there is nothing to resume from.
func (r Resume) Environ(env []string) []string {
	const path, step = "CKPTSYNC_RESUME_PATH=", "CKPTSYNC_RESUME_STEP="
	var out []string
	for _, e := range env {
		if !strings.HasPrefix(e, path) && !strings.HasPrefix(e, step) {
			out = append(out, e)
		}
	}
	return append(out, path+r.Path, step+r.step())
}

// Expand fills in templates in a command's arguments:
//
//	{resume_path}           the restored step's path
//	{resume_step}           its number
//	{resume_flag:--resume=} the text and the path; --resume and the path as two
//	                        arguments if the text ends in a space
//
// If there is nothing to resume from, an argument with {resume_flag:…}, or which
// is {resume_path} or {resume_step} alone, is left out, and the others stand for
// nothing. Everything else stays as it is.
func (r Resume) Expand(args []string) []string {
	out := make([]string, 0, len(args)+1)
	for _, a := range args {
		if flag, ok := strings.CutPrefix(a, "{resume_flag:"); ok && strings.HasSuffix(flag, "}") {
			out = append(out, r.flag(strings.TrimSuffix(flag, "}"))...)
			continue
		}
		if r.Path == "" && (a == "{resume_path}" || a == "{resume_step}") {
			continue
		}
		out = append(out, strings.NewReplacer("{resume_path}", r.Path, "{resume_step}", r.step()).Replace(a))
	}
	return out
}

func (r Resume) flag(text string) []string {
	name, two := strings.CutSuffix(text, " ")
	switch {
	case r.Path == "":
		return nil
	case two:
		return []string{name, r.Path}
	}
	return []string{text + r.Path}
}
