package accel

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func rules(t testing.TB, text string) []Rounding {
	t.Helper()
	r, err := ParseRounding(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRounding_Round(t *testing.T) {
	t.Parallel()
	const mig = "mig:parts=7,3g.40gb=40448/3*2,1g.10gb=9984/1*7,1g.20gb=19968/1*4,2g.20gb=20096/2*3,7g.80gb=80384/7*1"
	for name, tc := range map[string]struct {
		rule    string
		mib     uint64
		pct     int
		card    uint64
		want    Share
		refused bool
	}{
		"HAMi takes what is asked":           {"hami:memory=1,parts=100", 20000, 33, 81920, Share{MemoryMiB: 20000, Parts: 33, ComputePct: 33}, false},
		"MIG takes the smallest profile":     {mig, 9000, 0, 81920, Share{Template: "1g.10gb", MemoryMiB: 9984, Parts: 1, ComputePct: 14}, false},
		"MIG by memory":                      {mig, 10240, 0, 81920, Share{Template: "1g.20gb", MemoryMiB: 19968, Parts: 1, ComputePct: 14}, false},
		"MIG by compute":                     {mig, 9000, 20, 81920, Share{Template: "2g.20gb", MemoryMiB: 20096, Parts: 2, ComputePct: 28}, false},
		"MIG has nothing so large":           {mig, 81000, 0, 81920, Share{}, true},
		"a vNPU takes cores with its memory": {"vnpu:parts=20,vir05_1c_16g=16384/5*4,vir10_3c_32g=32768/10*2", 8192, 30, 65536, Share{Template: "vir10_3c_32g", MemoryMiB: 32768, Parts: 10, ComputePct: 50}, false},
		"sMLU counts in 256 MiB":             {"smlu:memory=256,parts=100", 1000, 1, 24576, Share{MemoryMiB: 1024, Parts: 1, ComputePct: 1}, false},
		"vDCU counts compute units":          {"vdcu:memory=1,parts=60,max=4", 4096, 10, 32752, Share{MemoryMiB: 4096, Parts: 6, ComputePct: 10}, false},
		"a step passes the card":             {"smlu:memory=256", 24500, 0, 24510, Share{MemoryMiB: 24576}, true},
		"the size of the card is not known":  {"smlu:memory=256", 24500, 0, 0, Share{MemoryMiB: 24576}, false},
		"nothing is told of compute":         {"sgpu:memory=1", 100, 45, 0, Share{MemoryMiB: 100, ComputePct: 45}, false},
		"more than a card has":               {"hami:memory=1", 1 << 40, 0, 0, Share{}, true},
	} {
		got, ok := rules(t, tc.rule)[0].Round(tc.mib, tc.pct, tc.card)
		if diff := cmp.Diff(tc.want, got); diff != "" || ok == tc.refused {
			t.Errorf("%s: ok %v (-want +got):\n%s", name, ok, diff)
		}
	}
}

func TestParseRounding_LeavesOutWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"mig":                     "is no rule",
		"MIG:memory=1":            "is no rule",
		"mig:":                    "is no rule",
		"mig:1g":                  "is no item",
		"mig:1g=0":                "none of 1 and above",
		"mig:1g=99999999999":      "is no item",
		"mig:1g=9999999999":       "more than any card has",
		"mig:1g=1,1g=1":           "there twice",
		"mig:1g=1/2":              "2 parts of 0",
		"mig:memory=1,1g=1":       "templates and steps",
		"mig:memory=1,memory=2":   "given twice",
		"mig:parts=7/2":           "no number of its kind",
		"mig:memory=1;mig:max=1;": "two rules",
	} {
		got, err := ParseRounding("hami:memory=1,parts=100;" + text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
		if !slices.ContainsFunc(got, func(r Rounding) bool { return r.Mode == "hami" && r.Parts == 100 }) {
			t.Errorf("%q: the other rule is lost: %v", text, got)
		}
	}
	if got, err := ParseRounding(""); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
}

func genRounding(t *rapid.T) Rounding {
	r := Rounding{
		Mode:  rapid.SampledFrom([]Mode{ModeMIG, ModeVNPU, ModeHAMi, ModeSMLU}).Draw(t, "mode"),
		Parts: rapid.IntRange(1, 100).Draw(t, "parts"), Max: rapid.IntRange(0, 16).Draw(t, "max"),
	}
	if rapid.Bool().Draw(t, "steps") {
		r.StepMiB = rapid.Uint64Range(1, 1<<15).Draw(t, "step")
		return r
	}
	r.Templates = rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) Template {
		return Template{
			Name:      rapid.StringMatching(`[0-9]g\.[a-z]{1,4}`).Draw(t, "name"),
			MemoryMiB: rapid.Uint64Range(1, 1<<18).Draw(t, "memory"), Parts: rapid.IntRange(0, r.Parts).Draw(t, "share"), Max: rapid.IntRange(0, 7).Draw(t, "often"),
		}
	}), 1, 8, func(t Template) string { return t.Name }).Draw(t, "templates")
	SortTemplates(r.Templates)
	return r
}

func TestRounding_TextAndBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := []Rounding{genRounding(t)}
		got, err := ParseRounding(FormatRounding(want))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Fatalf("%s became, error %v (-want +got):\n%s", FormatRounding(want), err, diff)
		}
	})
}

// A share is at least what was asked, the smallest that the mode gives, the same when it is asked for itself, and never
// smaller when more is asked.
func TestRounding_IsTheSmallestShareThatHoldsTheAsk(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := genRounding(t)
		mib, pct := rapid.Uint64Range(1, 1<<18).Draw(t, "ask"), rapid.IntRange(0, 100).Draw(t, "percent")
		s, ok := r.Round(mib, pct, 0)
		if !ok {
			for _, one := range r.Templates {
				if one.MemoryMiB >= mib && one.Parts == r.Parts {
					t.Fatalf("%d MiB and %d %% were refused and fit into %+v", mib, pct, one)
				}
			}
			return
		}
		if s.MemoryMiB < mib || s.Parts > 0 && s.ComputePct < pct {
			t.Fatalf("%d MiB and %d %% became %+v", mib, pct, s)
		}
		if r.StepMiB > 0 && (s.MemoryMiB%r.StepMiB != 0 || s.MemoryMiB-mib >= r.StepMiB) {
			t.Fatalf("%d MiB in steps of %d became %+v", mib, r.StepMiB, s)
		}
		for _, one := range r.Templates {
			if one.MemoryMiB >= mib && one.MemoryMiB < s.MemoryMiB && one.Parts == r.Parts {
				t.Fatalf("%d MiB became %+v though %+v is smaller", mib, s, one)
			}
		}
		if again, ok := r.Round(s.MemoryMiB, 0, 0); !ok || again.MemoryMiB != s.MemoryMiB {
			t.Fatalf("%+v became %+v when it was asked for", s, again)
		}
		if less, ok := r.Round(mib/2, pct/2, 0); !ok || less.MemoryMiB > s.MemoryMiB {
			t.Fatalf("half of %d MiB and %d %% became %+v, all of it %+v", mib, pct, less, s)
		}
	})
}

func FuzzParseRounding(f *testing.F) {
	for _, seed := range []string{"", "hami:memory=1,parts=100;mig:parts=7,1g.10gb=9984/1*7", "a:b=1;;a:max=3", "x:memory=1,y=2"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		once, _ := ParseRounding(text) // what cannot be read is told; the rest must survive a round
		again, err := ParseRounding(FormatRounding(once))
		if err != nil || !cmp.Equal(once, again) {
			t.Errorf("%v became %v, %v", once, again, err)
		}
		for _, r := range once {
			if s, ok := r.Round(1000, 10, 0); ok && s.MemoryMiB < 1000 {
				t.Errorf("%+v gives %+v", r, s)
			}
		}
	})
}

func TestQoSOf_VendorByMode(t *testing.T) {
	t.Parallel()
	for modes, want := range map[string]QoS{
		"": Bronze, "mig": Bronze, "cpx": Bronze, "warp": Bronze,
		"mps": Silver, "hami": Silver, "hami,mig,mps": Silver, "vdcu": Silver, "sgpu": Silver, "vxpu": Silver, "vgcu": Silver,
		"vnpu": Gold, "smlu": Gold, "svi": Gold, "vgpu": Gold, "hami,vnpu": Gold,
	} {
		if got := QoSOf(Shared, strings.Split(modes, ",")); got != want {
			t.Errorf("slices with %q are %s, want %s", modes, got, want)
		}
		for _, form := range []Form{Whole, MIG, Partition} {
			if got := QoSOf(form, strings.Split(modes, ",")); got != Gold {
				t.Errorf("%s with %q is %s, want gold", form, modes, got)
			}
		}
	}
}
