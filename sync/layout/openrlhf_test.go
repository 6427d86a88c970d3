package layout_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// OpenRLHF: the newest tag of every role counts, and older ones are left out.
func TestOpenRLHFRoles(t *testing.T) {
	c := frameCases()["openrlhf"]
	fsys := c.fsys()
	layouttest.Put(fsys, "ckpt/_actor/global_step10", layouttest.Stamp(distBase, layouttest.DeepSpeedFiles(layouttest.DeepSpeedSave{Step: 10, World: 2, MP: 1, Stage: 2})[:1]))
	fsys["ckpt/_actor/best_hf/x"] = blob([]byte("x"))
	fsys["ckpt/notes.txt"] = blob([]byte("x"))
	v := judgeAuto(t, fsys, "ckpt")
	wantReasons(t, v)
	if d := cmp.Diff([]string{"_actor/best_hf", "_actor/global_step10", "notes.txt"}, v.Skip); d != "" {
		t.Error(d)
	}
	fsys["ckpt/_critic/latest"].Data = []byte("global_step10")
	wantReasons(t, judgeAuto(t, fsys, "ckpt"), "_critic/latest names global_step10, not global_step20: its save is under way, or was cut off")
}

// A role that has not saved the tag yet.
func TestOpenRLHFRoleBehind(t *testing.T) {
	c := frameCases()["openrlhf"]
	fsys := c.fsys()
	for p := range fsys {
		if strings.HasPrefix(p, "ckpt/_critic/global_step20/") {
			delete(fsys, p)
		}
	}
	fsys["ckpt/_critic/latest"].Data = []byte("global_step10")
	wantReasons(t, judgeAuto(t, fsys, "ckpt"), "_critic/latest names global_step10, not global_step20: its save is under way, or was cut off",
		"missing _critic/global_step20")
}
