package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/test/stores"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(trainerEnv); text != "" {
		os.Stderr.WriteString(train(text).Error() + "\n")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestSoak is a short one. The gate has one of three minutes as well.
func TestSoak(t *testing.T) {
	if _, err := stores.BuildVersitygw(t.Context()); err != nil {
		if os.Getenv("CKPTSYNC_REQUIRE_SERVERS") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	var out strings.Builder
	err := soak(t.Context(), 10*time.Second, 300*time.Millisecond, uint64(time.Now().UnixNano()), &out)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
}

// TestMatches: a torn step, and one of two saves mixed, are no saves.
func TestMatches(t *testing.T) {
	save := func(life int) map[string]string {
		got := map[string]string{}
		for _, f := range files(120, life) {
			got[f.Name] = string(f.Data)
		}
		return got
	}
	if err := matches(save(2), 120, 3); err != nil {
		t.Error(err)
	}
	for what, spoil := range map[string]func(map[string]string){
		"torn":      func(g map[string]string) { delete(g, "trainer_state.json") },
		"mixed":     func(g map[string]string) { g["model.safetensors"] = save(1)["model.safetensors"] },
		"one more":  func(g map[string]string) { g["more"] = "" },
		"cut short": func(g map[string]string) { g["optimizer.pt"] = g["optimizer.pt"][:9] },
	} {
		g := save(2)
		if spoil(g); matches(g, 120, 3) == nil {
			t.Errorf("a step that is %s passes for a save", what)
		}
	}
	if matches(save(4), 120, 3) == nil {
		t.Error("a save of a life that has not been passes")
	}
}

func TestGrown(t *testing.T) {
	steady := []int{10, 30, 30, 31, 30, 30, 31, 30}
	if _, err := (&usage{rss: steady, files: steady}).grown(); err != nil {
		t.Error(err)
	}
	more := []int{10, 30, 40, 50, 60, 70, 80, 90}
	if _, err := (&usage{rss: more, files: steady}).grown(); err == nil {
		t.Error("memory that grows is not noticed")
	}
	if _, err := (&usage{rss: steady, files: more}).grown(); err == nil {
		t.Error("open files that grow are not noticed")
	}
}
