package device

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
)

const gone = "gpu: " + reasonMissing

// The first reading after a restart may miss the parts: their card is not offered over them until enough readings say that they
// are gone.
func TestRemembered_PartsOutliveARestart(t *testing.T) {
	t.Parallel()
	const there, missed, restart = "there", "missed", "restart"
	for name, tc := range map[string]struct {
		readings []string
		want     []string // after each reading
	}{
		"missed at the first":           {[]string{there, restart, missed, there, missed}, []string{"gpu", gone, "gpu", "gpu"}},
		"missed until another restart":  {[]string{there, restart, missed, missed, restart, missed, missed, there}, []string{"gpu", gone, gone, gone, gone, "gpu"}},
		"really gone":                   {[]string{there, restart, missed, missed, missed}, []string{"gpu", gone, gone, "mig"}},
		"gone, and then a restart":      {[]string{there, missed, missed, missed, restart, missed}, []string{"gpu", "gpu", "gpu", "mig", "mig"}},
		"restarts alone change nothing": {[]string{there, restart, restart, there, restart, there}, []string{"gpu", "gpu", "gpu"}},
		"never there":                   {[]string{missed, restart, missed}, []string{"mig", "mig"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t.TempDir(), inMIG(good("GPU-a", "0000:01:00.0")))
			p, got := s.opened(migOfAll), []string{}
			for _, reading := range tc.readings {
				s.parts["GPU-a"] = nil
				switch reading {
				case restart:
					p = s.opened(migOfAll)
					continue
				case there:
					s.parts["GPU-a"] = []string{"part-1"}
				}
				got = append(got, groupOf(see(p)))
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("offered is %q, want %q", got, tc.want)
			}
		})
	}
}

// A memory that cannot be read is as good as none, and is written anew; so is one that somebody filled with other things.
func TestRemembered_FileThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"no JSON": "{", "cut": `[{"UUID": "part-1", "Fo`, "null": "null", "of another kind": `{"a": 1}`, "no parts": `[{}, {"UUID": "GPU-a", "Vendor": "nvidia", "Model": "A40", "Form": "whole"}]`, "empty": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t.TempDir(), inMIG(good("GPU-a", "0000:01:00.0")))
			file := filepath.Join(s.dir, "parts", "shop.json")
			must(os.MkdirAll(filepath.Dir(file), 0o755))
			must(os.WriteFile(file, []byte(body), 0o600))
			if got := groupOf(see(s.opened(migOfAll))); got != "mig" {
				t.Errorf("offered is %q", got)
			}
			s.part("GPU-a", "part-1")
			if got := groupOf(see(s.opened(migOfAll))); got != "gpu" {
				t.Errorf("with a part %q is offered", got)
			}
			s.unpart("GPU-a", "part-1")
			if got := groupOf(see(s.opened(migOfAll))); got != gone {
				t.Errorf("over the part that is missed once %q is offered", got)
			}
		})
	}
}

// A look at the machine that changes nothing writes no memory.
func TestRemembered_OnceWritesNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t.TempDir(), inMIG(good("GPU-a", "0000:01:00.0")))
	s.part("GPU-a", "part-1")
	if _, err := s.opened(migOfAll).once(t.Context(), func(int, *source) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "parts")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the memory was written: %v", err)
	}
}

// However often the plugin is restarted and whatever single readings miss, a card whose parts are there is never offered over
// them; and once they are gone it is offered again.
func TestRemembered_Property(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		must(err)
		s := newShop(dir, inMIG(good("GPU-a", "0000:01:00.0")))
		all := []string{"part-1", "part-2"}
		s.parts["GPU-a"] = all
		p := s.opened(migOfAll)
		see(p)
		missed := 0
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			if rapid.IntRange(0, 3).Draw(rt, "restart") == 0 {
				p, missed = s.opened(migOfAll), 0
			}
			s.parts["GPU-a"] = rapid.SampledFrom([][]string{all, all[:1], all[1:], nil}).Draw(rt, "listed")
			if missed++; len(s.parts["GPU-a"]) == len(all) {
				missed = 0
			} else if missed == p.set.BadSamples {
				s.parts["GPU-a"], missed = all, 0
			}
			for _, g := range see(p) {
				if g.GetDeviceType() == accel.MIG.DeviceType() && len(g.GetDevices()) > 0 {
					rt.Fatalf("slices are offered over parts, %d readings in a row without one of them", missed)
				}
			}
		}
		s.parts["GPU-a"] = nil
		p = s.opened(migOfAll)
		for range p.set.BadSamples {
			see(p)
		}
		if got := groupOf(see(p)); got != "mig" {
			rt.Errorf("the parts are gone, and %q is offered", got)
		}
	})
}
