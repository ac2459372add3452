package maker

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

func TestRun_AnErrorHasTheToolsWords(t *testing.T) {
	t.Parallel()
	tools := sharetest.NewTools(map[string]func([]string) share.Output{
		"/opt/x/smi": func(args []string) share.Output {
			switch args[0] {
			case "ok":
				return share.Output{Stdout: "fine\n"}
			case "stderr":
				return share.Output{Stdout: "usage", Stderr: "\n  card is busy\nmore", ExitCode: 3}
			case "stdout":
				return share.Output{Stdout: "no such card", ExitCode: 4}
			}
			return share.Output{ExitCode: 5}
		},
	})
	for verb, want := range map[string]string{
		"stderr": "smi stderr 7 ended with status 3: card is busy", "stdout": "smi stdout 7 ended with status 4: no such card",
		"silent": "smi silent 7 ended with status 5: it printed nothing",
	} {
		if _, err := Run(t.Context(), tools, "/opt/x/smi", verb, "7"); err == nil || err.Error() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if out, err := Run(t.Context(), tools, "/opt/x/smi", "ok"); err != nil || out != "fine\n" {
		t.Errorf("got %q, %v", out, err)
	}
	if _, err := Run(t.Context(), tools, "gone"); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("a tool that is not there: %v", err)
	}
	if found, err := Find(tools, "gone", "/opt/x/smi"); err != nil || found != "/opt/x/smi" {
		t.Errorf("found %q, %v", found, err)
	}
}

func TestUndoing_GoesOnWhenTheCallerHasGone(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	undo, stop := Undoing(ctx)
	defer stop()
	if _, bounded := undo.Deadline(); undo.Err() != nil || !bounded {
		t.Errorf("it has ended with %v, or has no end", undo.Err())
	}
}

func TestFit_NeverMoreThanWasGranted(t *testing.T) {
	t.Parallel()
	steps := accel.Rounding{Mode: "smlu", StepMiB: 256, Parts: 100}
	sizes := accel.Rounding{Mode: "svi", Parts: 4, Templates: []accel.Template{{Name: "quarter", MemoryMiB: 8128, Parts: 1}, {Name: "half", MemoryMiB: 16256, Parts: 2}}}
	for name, tc := range map[string]struct {
		rule accel.Rounding
		mib  uint64
		pct  int
		want string // of the error; empty: it fits
	}{
		"a step":          {steps, 512, 0, ""},
		"between steps":   {steps, 500, 0, "smlu makes no share of just 500 MiB of a X: write memory and compute as one of multiples of 256 MiB up to the card's memory, or ask for the whole card"},
		"above the card":  {steps, 65536, 0, "multiples of 256 MiB"},
		"a size":          {sizes, 16256, 50, ""},
		"between sizes":   {sizes, 10240, 0, "quarter (8128 MiB, 25 %), half (16256 MiB, 50 %)"},
		"more compute":    {sizes, 8128, 30, "8128 MiB and 30 % of compute"},
		"no memory asked": {sizes, 0, 0, "makes no share"},
	} {
		a := share.Ask{MemoryMiB: tc.mib, ComputePct: tc.pct, Card: grant.Card{Model: "X", MemoryMiB: 32512}}
		s, err := Fit(tc.rule, a)
		var size *SizeError
		switch {
		case tc.want == "" && (err != nil || s.MemoryMiB != tc.mib):
			t.Errorf("%s: %+v, %v", name, s, err)
		case tc.want != "" && (!errors.As(err, &size) || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: got %v, want an error with %q", name, err, tc.want)
		}
	}
}

func TestNodeNumber_FromTheNodeElseTheIndex(t *testing.T) {
	t.Parallel()
	for want, c := range map[int]grant.Card{
		12: {Index: 3, Nodes: []string{"/dev/davinci_manager", "/dev/davinci12"}},
		3:  {Index: 3, Nodes: []string{"/dev/davinci_manager"}},
	} {
		if got := NodeNumber(c, "/dev/davinci"); got != want {
			t.Errorf("%v: got %d, want %d", c.Nodes, got, want)
		}
	}
}

func TestFolder_ACopyStaysAsItWas(t *testing.T) {
	t.Parallel()
	h := share.Host{Root: t.TempDir(), Dir: "/state"}
	f := FolderOf(h, "amd", "hami")
	id := share.NewID("a", accel.AMD, "GPU-1")
	source := h.Path("/lib/x.so")
	put := func(text string) {
		if err := os.MkdirAll(filepath.Dir(source), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("one")
	first, err := f.Keep(id, "/lib/x.so", "x.so")
	if err != nil {
		t.Fatal(err)
	}
	put("two, in place")
	second, err := f.Keep(id, "/lib/x.so", "x.so")
	if err != nil || first != second {
		t.Errorf("the copy changed from %s to %s, %v", first, second, err)
	}
	if body, err := os.ReadFile(h.Path(f.Path(id, "x.so"))); err != nil || string(body) != "one" {
		t.Errorf("the copy is %q, %v", body, err)
	}
	if ids, err := f.IDs(); err != nil || !slices.Equal(ids, []share.ID{id}) {
		t.Errorf("folders of %v, %v", ids, err)
	}
	if err := f.Sweep(map[share.ID]share.Ask{id: {}}); err != nil {
		t.Error(err)
	}
	if err := f.Sweep(nil); err != nil {
		t.Error(err)
	}
	if ids, err := f.IDs(); err != nil || len(ids) > 0 {
		t.Errorf("left are %v, %v", ids, err)
	}
	if _, err := f.Keep(id, "/lib/gone.so", "x.so"); err == nil {
		t.Error("a library that is not there is kept")
	}
}

func TestTable_HalfAListIsNone(t *testing.T) {
	t.Parallel()
	rows, err := Table("a 1\n\n  b   2 \n", 2)
	if diff := cmp.Diff([][]string{{"a", "1"}, {"b", "2"}}, rows); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if rows, err := Table("a 1\nb\n", 2); err == nil || rows != nil {
		t.Errorf("got %v, %v", rows, err)
	}
}
