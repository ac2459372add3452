package brand

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// twin is a card of those that give one number, at its own place.
func twin(place string) Card { return Card{ID: "02Kxxx", PCI: "0000:" + place + ":00.0"} }

// A card whose number another one gives keeps its name, whatever becomes of the other.
func TestNamesakes(t *testing.T) {
	t.Parallel()
	const a, b, restart = "53", "56", "restart"
	serial, placeA, placeB := "XPU-02Kxxx", "PCI-0000:53:00.0", "PCI-0000:56:00.0"
	cases := map[string]struct {
		readings []string // the places of the cards, in the order of the tool
		want     string   // the names that a and b have, whenever they are there
	}{
		"one is lost":                             {[]string{a + b, a}, placeA + " " + placeB},
		"the other is lost":                       {[]string{a + b, b}, placeA + " " + placeB},
		"listed in another order":                 {[]string{a + b, b + a, b, a + b}, placeA + " " + placeB},
		"lost, and found again":                   {[]string{a + b, a, b + a, b, a + b}, placeA + " " + placeB},
		"lost over a restart":                     {[]string{a + b, restart, a, restart, b, restart, a + b}, placeA + " " + placeB},
		"lost, and then a restart":                {[]string{a + b, b, restart, b, a + b}, placeA + " " + placeB},
		"the second comes later":                  {[]string{a, a + b, b, b + a, a}, serial + " " + placeB},
		"the second comes later, and a restart":   {[]string{a, a + b, restart, b, restart, b + a, a}, serial + " " + placeB},
		"alone over a restart, the second after":  {[]string{a, restart, a, a + b, restart, a}, serial + " " + placeB},
		"both vanish":                             {[]string{a + b, "", restart, "", a, b + a}, placeA + " " + placeB},
		"a number is not repeated by a third one": {[]string{"77", "77" + a}, "XPU-other " + placeB},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, spec := t.TempDir(), Spec{Vendor: accel.Kunlunxin, Prefix: "XPU-"}
			open := func() *Namesakes {
				return NewNamesakes(spec.Vendor, Config{StateDir: dir}, hclog.NewNullLogger())
			}
			known := open()
			names := strings.Fields(tc.want)
			for step, reading := range tc.readings {
				if reading == restart {
					known = open()
					continue
				}
				var r Reading
				var want []string
				for ; reading != ""; reading = reading[2:] {
					index, c := len(r.Cards), twin(reading[:2])
					switch {
					case reading[:2] == a && strings.HasSuffix(names[0], "other"):
						c.ID, want = "other", append(want, "XPU-other")
					case reading[:2] == a:
						want = append(want, names[0])
					case reading[:2] == b:
						want = append(want, names[1])
					default:
						want = append(want, serial)
					}
					c.Index = &index
					r.Cards = append(r.Cards, c)
				}
				if got := r.identities(spec.Prefix, known); strings.Join(got, " ") != strings.Join(want, " ") {
					t.Errorf("step %d: %v, want %v", step, got, want)
				}
			}
		})
	}
}

// A line that is printed twice, and parts of a board that the tool does not number, say nothing against a number: the card
// has its name again as soon as one line has it. Where not even the places are known, the tool's numbering names the cards.
func TestNamesakes_WhatIsNoNamesake(t *testing.T) {
	t.Parallel()
	zero, one := 0, 1
	known := &Namesakes{}
	for step, tc := range []struct {
		cards []Card
		want  string
	}{
		{[]Card{twin("53")}, "XPU-02Kxxx"},
		{[]Card{twin("53"), {ID: "02Kxxx", PCI: "0000:53:00.0", Index: &one}}, " INDEX-1"},
		{[]Card{twin("53")}, "XPU-02Kxxx"},
		{[]Card{{ID: "sn", Index: &zero}, {ID: "sn", Index: &one}}, "INDEX-0 INDEX-1"},
		{[]Card{{ID: "sn", Index: &one}}, "INDEX-1"},
	} {
		if got := strings.Join((Reading{Cards: tc.cards}).identities("XPU-", known), " "); got != tc.want {
			t.Errorf("step %d: %q, want %q", step, got, tc.want)
		}
	}
}

// Of any machine, in whatever order its cards are listed, whichever are missing, and however often the plugin starts again:
// a name stands for one card only, and no card changes the name that it has had since all cards were seen.
func TestNamesakes_NoCardChangesItsName(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "namesakes")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		spec := Spec{Vendor: accel.Ascend, Prefix: "NPU-"}
		machine := boards(t)
		var known *Namesakes
		named := map[string]string{} // card → its name
		all := rapid.Bool().Draw(t, "all cards are there at first")
		for step := range rapid.IntRange(1, 8).Draw(t, "readings") {
			if known == nil || rapid.Bool().Draw(t, "restart") {
				known = NewNamesakes(spec.Vendor, Config{StateDir: dir}, hclog.NewNullLogger())
			}
			var r Reading
			for _, c := range rapid.Permutation(machine).Draw(t, "order") {
				if step == 0 && all || rapid.Bool().Draw(t, "there") {
					index := len(r.Cards)
					c.Index = &index
					r.Cards = append(r.Cards, c)
				}
			}
			taken := map[string]bool{}
			for i, name := range r.identities(spec.Prefix, known) {
				card := r.Cards[i].PCI + "#" + r.Cards[i].Part
				if name == "" || taken[name] {
					t.Fatalf("step %d: card %s has the name %q, and so has another", step, card, name)
				}
				taken[name] = true
				if before := named[card]; all && before != "" && before != name {
					t.Fatalf("step %d: card %s was %s and is %s", step, card, before, name)
				}
				named[card] = name
			}
		}
	})
}

// What is kept is found in the folder for state, is of no use to others, and a look at the machine writes nothing.
func TestNamesakes_Kept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "repeated-numbers", "kunlunxin.json")
	both := Reading{Cards: []Card{twin("53"), twin("56")}}
	look := NewNamesakes(accel.Kunlunxin, Config{StateDir: dir, Looking: true}, hclog.NewNullLogger())
	both.identities("XPU-", look)
	if _, err := os.Stat(filepath.Dir(file)); !os.IsNotExist(err) {
		t.Errorf("a look wrote: %v", err)
	}
	both.identities("XPU-", NewNamesakes(accel.Kunlunxin, Config{StateDir: dir}, hclog.NewNullLogger()))
	body, err := os.ReadFile(file)
	if diff := cmp.Diff("{\n  \"02Kxxx\": \"\"\n}", string(body)); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	look = NewNamesakes(accel.Kunlunxin, Config{StateDir: dir, Looking: true}, hclog.NewNullLogger())
	if got := (Reading{Cards: []Card{twin("56")}}).identities("XPU-", look); got[0] != "PCI-0000:56:00.0" {
		t.Errorf("a look does not read what is kept: %v", got)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := NewNamesakes(accel.Kunlunxin, Config{StateDir: dir}, hclog.NewNullLogger())
	if got := (Reading{Cards: []Card{twin("56")}}).identities("XPU-", broken); got[0] != "XPU-02Kxxx" {
		t.Errorf("a file that cannot be read: %v", got)
	}
}

// The detector names its samples and processes as it names its cards, and remembers over a restart.
func TestDetector_RemembersNamesakes(t *testing.T) {
	t.Parallel()
	dir, listed := t.TempDir(), []string{"53", "56"}
	spec := Spec{
		Vendor: accel.Kunlunxin, PCI: "1d22", Prefix: "XPU-", Tools: []string{"any"},
		Read: func(string, Call) (Reading, error) {
			r := Reading{ProcessesKnown: true}
			for i, place := range listed {
				c := twin(place)
				c.Index = &i
				c.Processes = []Process{{PID: 100 + i}}
				r.Add(c)
			}
			return r, nil
		},
	}
	start := func() *Detector {
		return New(spec, Config{Root: t.TempDir(), StateDir: dir}, hclog.NewNullLogger())
	}
	d := start()
	for step, tc := range []struct {
		places  []string
		restart bool
		want    string
	}{
		{places: []string{"53", "56"}, want: "PCI-0000:53:00.0[100] PCI-0000:56:00.0[101]"},
		{places: []string{"56"}, want: "PCI-0000:56:00.0[100]"},
		{places: []string{"56"}, restart: true, want: "PCI-0000:56:00.0[100]"},
		{places: []string{"56", "53"}, want: "PCI-0000:56:00.0[100] PCI-0000:53:00.0[101]"},
	} {
		if listed = tc.places; tc.restart {
			d = start()
		}
		cards, err := d.Detect(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		processes, err := d.Processes(context.Background(), cards)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range cards {
			got = append(got, fmt.Sprint(c.UUID, processes[c.UUID]))
		}
		if diff := cmp.Diff(tc.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", step, diff)
		}
	}
}
