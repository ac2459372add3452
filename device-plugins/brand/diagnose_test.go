package brand_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/diagnose"
	"github.com/heteroflow/heteroflow/device-plugins/diagnose/mask"
)

func TestDiagnose_HowTheToolFared(t *testing.T) {
	t.Parallel()
	noProgram := brandtest.Tool(t, "tool", nil)
	cases := map[string]struct {
		tool   string
		state  diagnose.State
		detail string
	}{
		"it lists cards":     {says(t, "0 0000:01:00.0\n1 0000:02:00.0"), diagnose.Works, "lists 2 cards"},
		"it lists one":       {says(t, "0 0000:01:00.0"), diagnose.Works, "lists 1 card"},
		"it knows of none":   {says(t, "none"), diagnose.Works, "lists no card"},
		"it is another's":    {says(t, "foreign"), diagnose.Foreign, "another maker's tool of the same name"},
		"it is in trouble":   {says(t, "broken"), diagnose.Failed, "says: the driver cannot be reached"},
		"it says other":      {says(t, "hello"), diagnose.Failed, "prints nothing that is known"},
		"it is not there":    {"no-such-tool", diagnose.Missing, ""},
		"it refuses to talk": {noProgram, diagnose.Failed, "prints nothing that is known"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := detector(machine(t), tc.tool).Diagnose(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			p := b.Paths[0]
			if p.Name != tc.tool || p.State != tc.state || p.Detail != tc.detail || p.Kind != diagnose.Tool {
				t.Errorf("path %+v", p)
			}
			if !b.Present || len(b.Bus) != 3 || b.Paths[1].Kind != diagnose.Kernel {
				t.Errorf("%+v", b)
			}
		})
	}
}

// A tool that hangs leaves no time for the next.
func TestDiagnose_Hang(t *testing.T) {
	t.Parallel()
	s := spec()
	s.Tools = []string{brandtest.Tool(t, "tool", map[string]brandtest.Answer{"": {Hang: true}}), says(t, "0 0000:01:00.0")}
	d := brand.New(s, brand.Config{Root: machine(t)}, hclog.NewNullLogger())
	b, err := d.Diagnose(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range b.Paths {
		got = append(got, string(p.State)+": "+p.Detail)
	}
	want := []string{"hangs: does not answer after 4 s", "not_tried: no time was left", "works: 3 cards on the bus"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDiagnose_NothingShows(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	brandtest.Bus(t, root, "0000:05:00.0", "10de", "2684", "nvidia", "a1")
	b, err := detector(root, says(t, "0")).Diagnose(context.Background())
	if err != nil || b.Present || len(b.Lacks) > 0 || b.Paths[0].State != diagnose.NotTried {
		t.Errorf("%+v, %v", b, err)
	}
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	s := spec()
	s.Parse = func(string) brand.Reading {
		c := brand.Card{ID: "serial-1", Processes: []brand.Process{{PID: 7, Name: "python"}}}
		c.Fact("board serial", "serial-2")
		c.Fact("fan", "3")
		return brand.Reading{Cards: []brand.Card{c}}
	}
	got := brand.New(s, brand.Config{}, hclog.NewNullLogger()).Secrets("")
	want := []mask.Secret{{Kind: mask.Serial, Value: "serial-1"}, {Kind: mask.Serial, Value: "serial-2"}, {Kind: mask.Command, Value: "python", With: "7"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
