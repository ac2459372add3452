package nvidia

import (
	"path/filepath"
	"testing"

	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
)

func fuzzOne(f *testing.F, glob, more string, parse func(string) (report, bool)) {
	f.Helper()
	for _, pattern := range []string{glob, more} {
		files, err := filepath.Glob(filepath.Join("testdata", "recorded", pattern))
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			if filepath.Base(file) != "recorded" {
				f.Add(recorded(f, filepath.Base(file)))
			}
		}
	}
	f.Fuzz(func(t *testing.T, out string) { checkReading(t, out, parse) })
}

// checkReading holds for any text: cards have an identity that starts with a letter and a model that can name a
// device group, and a second reading of the same text adds nothing.
func checkReading(t *testing.T, out string, parse func(string) (report, bool)) {
	t.Helper()
	r, ok := parse(out)
	if !ok {
		return
	}
	again, _ := parse(out)
	before := len(again.gpus)
	if again.merge(r); len(again.gpus) > 2*before {
		t.Errorf("merge made %d cards of %d", len(again.gpus), before)
	}
	for _, c := range r.cards("cli", hostfs.New(t.TempDir()), nil) {
		if c.UUID == "" || c.Model == "" {
			t.Errorf("card without a name: %+v", c)
		}
		if c.Health.OK == (c.Health.Reason != "") {
			t.Errorf("health and reason disagree: %+v", c.Health)
		}
	}
}
